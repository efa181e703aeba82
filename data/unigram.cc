#include "data/unigram.h"

#include <algorithm>
#include <cfloat>
#include <queue>

#include "data/utf8.h"

namespace loqal {
namespace {

constexpr uint32_t kNowhere = UINT32_MAX;
constexpr float kUnknownPenalty = 10;  // kUnkPenalty in the library's unigram_model.cc

struct Key {
  std::string text;
  int32_t id;
  float score;
};

}  // namespace

/// Places the children of each node at the first base where all their units are free, level by
/// level.
class Unigram::Builder {
 public:
  Builder(const std::vector<Key>& keys, Unigram* out)
      : keys_(keys), trie_(out->trie_), pieces_(out->pieces_) {
    grow(), grow();
    trie_[kRoot] = 0;  // no longer free
    std::queue<Range> open;
    for (open.push({kRoot, 0, keys.size(), 0}); !open.empty(); open.pop())
      place(open.front(), &open);
  }
  bool too_large() const { return too_large_; }

 private:
  struct Range {  // keys [begin, end) share their first `depth` bytes, which lead to `node`
    uint32_t node;
    size_t begin, end, depth;
  };

  void grow() {
    trie_.resize(trie_.size() + 256, kFree);
    pieces_.resize(trie_.size());
    used_base_.resize(trie_.size());
  }
  bool is_free(uint32_t unit) const { return trie_[unit] == kFree; }

  void place(Range r, std::queue<Range>* open) {
    if (keys_[r.begin].text.size() == r.depth) {  // the shortest comes first
      trie_[r.node] |= 1 << 9;
      pieces_[r.node] = {keys_[r.begin].score, keys_[r.begin].id};
      r.begin++;
    }
    std::vector<Range> children;
    std::vector<uint8_t> labels;
    for (size_t i = r.begin; i < r.end; i++) {
      const uint8_t label = uint8_t(keys_[i].text[r.depth]);
      if (labels.empty() || labels.back() != label) {
        labels.push_back(label);
        children.push_back({0, i, i, r.depth + 1});
      }
      children.back().end = i + 1;
    }
    if (labels.empty()) return;
    const uint32_t base = find_base(labels);
    if (base >= 1u << 22) {  // of its 22 bits in a unit; a vocabulary of millions
      too_large_ = true;
      return;
    }
    used_base_[base] = true;
    trie_[r.node] |= base << 10;
    for (size_t i = 0; i < labels.size(); i++) {
      children[i].node = base ^ labels[i];
      trie_[children[i].node] = labels[i];
      open->push(children[i]);
    }
  }

  /// In the last blocks, which are the emptiest, or in a new one, which is free for any labels.
  uint32_t find_base(const std::vector<uint8_t>& labels) {
    const size_t first =
        std::max<size_t>(2 * 256, trie_.size() - std::min<size_t>(trie_.size(), kSearched));
    for (size_t slot = first; slot < trie_.size(); slot++) {
      const uint32_t base = uint32_t(slot) ^ labels[0];
      if (is_free(uint32_t(slot)) && !used_base_[base] &&
          std::all_of(labels.begin(), labels.end(),
                      [&](uint8_t label) { return is_free(base ^ label); }))
        return base;
    }
    grow();
    return uint32_t(trie_.size() - 256);
  }

  static constexpr size_t kSearched = 4 * 256;
  bool too_large_ = false;
  const std::vector<Key>& keys_;
  std::vector<uint32_t>& trie_;
  std::vector<Piece>& pieces_;
  std::vector<bool> used_base_;
};

/// Best way to the end of a character: the last piece on it, and where that begins.
struct Unigram::Best {
  float score = 0;
  uint32_t begin = kNowhere;
  int32_t id = -1;
};

std::unique_ptr<const Unigram> Unigram::make(const SpmModel& model) {
  if (model.type != SpmModel::unigram || model.blank_is_suffix || !model.escape_blanks ||
      model.has(SpmPiece::user_defined) || !model.has(SpmPiece::unknown) ||
      std::none_of(model.pieces.begin(), model.pieces.end(),
                   [](const SpmPiece& p) { return p.can_match(); }))
    return nullptr;
  std::unique_ptr<const Unigram> made(new Unigram(model));
  return made->trie_.empty() ? nullptr : std::move(made);
}

Unigram::Unigram(const SpmModel& model) : normalizer_(model), unknown_(model) {
  std::vector<Key> keys;
  float least = FLT_MAX;
  for (size_t i = 0; i < model.pieces.size(); i++) {
    const SpmPiece& piece = model.pieces[i];
    if (piece.type == SpmPiece::normal) least = std::min(least, piece.score);
    if (piece.can_match()) keys.push_back({piece.spelled(), int32_t(i), piece.score});
  }
  unknown_score_ = least - kUnknownPenalty;
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.text < b.text; });
  const auto same = [](const Key& a, const Key& b) { return a.text == b.text; };
  keys.erase(std::unique(keys.begin(), keys.end(), same), keys.end());  // of a damaged model
  if (Builder(keys, this).too_large()) trie_.clear();
}

std::vector<int32_t> Unigram::encode(std::string_view document) const {
  const std::string text = normalizer_.normalize(document);
  const uint32_t size = uint32_t(text.size());
  std::vector<Best> best(size + 1);
  // As in the library, a sum is a double when it is compared and a float when it is kept: which of
  // two equal ways wins depends on that.
  const auto offer = [&](uint32_t end, double score, uint32_t begin, int32_t id) {
    Best& b = best[end];
    if (b.begin == kNowhere || score > double(b.score)) b = {float(score), begin, id};
  };
  const uint32_t* trie = trie_.data();
  const uint32_t root = trie[kRoot] >> 10;
  for (uint32_t begin = 0, length; begin < size; begin += length) {
    const bool ascii = uint8_t(text[begin]) < 128;
    length = ascii ? 1 : uint32_t(std::max<size_t>(1, utf8_length(text, begin)));
    const float so_far = best[begin].score;
    bool one_character = false;
    uint32_t base = root;
    for (uint32_t end = begin; end < size;) {
      const uint8_t label = uint8_t(text[end]);
      const uint32_t node = base ^ label, unit = trie[node];
      if ((unit & 511) != label) break;
      base = unit >> 10;
      end++;
      if (!(unit & 512)) continue;
      offer(end, double(pieces_[node].score) + double(so_far), begin, pieces_[node].id);
      one_character |= end - begin == length;
    }
    if (!one_character)
      offer(begin + length, double(unknown_score_ + so_far), begin, unknown_.id());
  }

  std::vector<uint32_t> ends;  // of the pieces, the last one first
  for (uint32_t end = size; end > 0; end = best[end].begin) ends.push_back(end);
  std::vector<int32_t> ids;
  ids.reserve(ends.size());
  bool after_unknown = false;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Best& b = best[*end];
    const bool unknown = b.id == unknown_.id();
    if (unknown)
      unknown_.append(std::string_view(text).substr(b.begin, *end - b.begin), after_unknown, &ids);
    else ids.push_back(b.id);
    after_unknown = unknown;
  }
  return ids;
}

}  // namespace loqal
