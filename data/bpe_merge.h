// The merging of byte-pair encoding (Sennrich et al. 2016): of all neighbours that may merge, those
// of lowest rank first, the leftmost among equals, until none may. GPT-2's tokenizer and
// SentencePiece's BPE models differ only in what a symbol is at the start and in where ranks come
// from.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace loqal {

class BpeMerges {
 public:
  /// Neighbours (left, right) become `merged`. The first rank given for a pair counts.
  void add(int32_t left, int32_t right, int32_t rank, int32_t merged) {
    merges_.try_emplace(key(left, right), Merge{rank, merged});
  }

  /// Merges `symbols` in place. O(n log n), since a word may be a whole document without a blank;
  /// memory: 20 to 28 bytes a symbol.
  void apply(std::vector<int32_t>* symbols) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  }

  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace loqal
