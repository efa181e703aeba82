// Which valid word a misspelt one was probably meant to be: "--vocb" -> "--vocab".
#pragma once
#include <algorithm>
#include <string>
#include <vector>

namespace loqal {

/// Levenshtein distance: insertions, deletions and substitutions of single characters.
inline size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);  // distances from a prefix of a to every prefix of b
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

/// The candidate closest to `word`, the first of equals; "" if there are no candidates.
inline std::string closest(const std::string& word, const std::vector<std::string>& candidates) {
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [&](const std::string& a, const std::string& b) {
                                       return edit_distance(word, a) < edit_distance(word, b);
                                     });
  return best == candidates.end() ? "" : *best;
}

}  // namespace loqal
