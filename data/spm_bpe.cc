#include "data/spm_bpe.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "data/utf8.h"

namespace loqal {
namespace {

constexpr int32_t kInNoPiece = INT32_MAX;  // merges with nothing

size_t character_length(std::string_view text, size_t at) {
  return std::max<size_t>(1, utf8_length(text, at));
}

}  // namespace

std::unique_ptr<const SpmBpe> SpmBpe::make(const SpmModel& model) {
  if (model.type != SpmModel::bpe || model.blank_is_suffix || !model.escape_blanks ||
      model.has(SpmPiece::unused) || !model.has(SpmPiece::unknown))
    return nullptr;
  for (const SpmPiece& p : model.pieces) {
    const bool blank = p.text.find(' ') != std::string::npos || p.spelled() != p.text;
    if (std::isnan(p.score) || (p.type == SpmPiece::user_defined && blank)) return nullptr;
  }
  return std::unique_ptr<const SpmBpe>(new SpmBpe(model));
}

SpmBpe::SpmBpe(const SpmModel& model)
    : normalizer_(model), unknown_(model), lengths_(model.pieces.size()) {
  std::map<float, int32_t, std::greater<>> ranks;  // by score, the largest first; equal ones share
  std::vector<std::pair<std::string, int32_t>> pieces;
  for (size_t id = 0; id < model.pieces.size(); id++) {
    const SpmPiece& piece = model.pieces[id];
    if (piece.type == SpmPiece::user_defined) {
      user_defined_.try_emplace(piece.text, int32_t(id));
      lengths_[id] = uint32_t(piece.text.size());
    }
    if (!piece.can_match()) continue;
    pieces.emplace_back(piece.spelled(), int32_t(id));
    symbols_.try_emplace(pieces.back().first, int32_t(id));
    lengths_[id] = uint32_t(pieces.back().first.size());
    ranks[piece.score] = 0;
  }
  int32_t rank = 0;
  for (auto& [score, its_rank] : ranks) its_rank = rank++;
  // A piece comes from any two symbols that it can be cut into: pieces, or single characters.
  for (const auto& [text, id] : pieces)
    for (size_t cut = character_length(text, 0); cut < text.size();
         cut += character_length(text, cut)) {
      const int32_t left = symbol(text.substr(0, cut)), right = symbol(text.substr(cut));
      if (left >= 0 && right >= 0)
        merges_.add(left, right, ranks[model.pieces[size_t(id)].score], id);
    }
}

/// A piece's id, or a character's number, which it gets here if it has none; -1 for other text.
int32_t SpmBpe::symbol(const std::string& text) {
  const auto found = symbols_.find(text);
  if (found != symbols_.end()) return found->second;
  if (character_length(text, 0) < text.size()) return -1;
  const int32_t number = int32_t(lengths_.size() + symbols_.size());
  symbols_[text] = number;
  return number;
}

std::vector<int32_t> SpmBpe::encode(std::string_view document) const {
  const std::string text = normalizer_.normalize(document);
  std::vector<int32_t> symbols;
  symbols.reserve(text.size());
  std::string character;
  for (size_t at = 0; at < text.size(); at += character.size()) {
    const size_t whole = normalizer_.user_defined(std::string_view(text).substr(at));
    character.assign(text, at, whole > 0 ? whole : character_length(text, at));
    const auto& known = whole > 0 ? user_defined_ : symbols_;
    const auto found = known.find(character);
    symbols.push_back(found == known.end() ? kInNoPiece : found->second);
  }
  merges_.apply(&symbols);

  std::vector<int32_t> ids;
  ids.reserve(symbols.size());
  bool after_unknown = false;
  size_t at = 0;
  for (const int32_t symbol : symbols) {
    const bool unknown = size_t(symbol) >= lengths_.size();
    const size_t length = unknown ? character_length(text, at) : lengths_[size_t(symbol)];
    if (unknown) unknown_.append(std::string_view(text).substr(at, length), after_unknown, &ids);
    else ids.push_back(symbol);
    after_unknown = unknown;
    at += length;
  }
  return ids;
}

}  // namespace loqal
