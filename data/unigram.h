// Encoder of SentencePiece unigram models (Kudo 2018, "Subword Regularization", section 3.2): the
// segmentation with the largest sum of piece scores. The ids are the library's, to the last one:
// the same sums in the same float, in the same order, ties resolved the same way (test/data).
//
// Why not the library, which we link anyway: it builds a protobuf with three strings for each
// piece. That takes 64 bytes of memory a byte of text, above the 24 that ./tokenize promises, and
// most of the time: a Python program that calls it reaches 0.7 of its speed, this one is to be
// twice as fast.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/spm_model.h"

namespace loqal {

/// Thread-safe.
class Unigram {
 public:
  /// Null for a model that is not of the kind: another type, user-defined pieces, blanks as
  /// suffixes or not escaped. The library is for those.
  static std::unique_ptr<const Unigram> make(const SpmModel& model);

  /// Ids of valid UTF-8; a run of unknown characters is one unknown id, or bytes where the model
  /// has those. Memory: 13 bytes a byte of normalized text, and the ids.
  std::vector<int32_t> encode(std::string_view text) const;

 private:
  explicit Unigram(const SpmModel& model);
  struct Best;
  void append_unknown(std::string_view text, bool after_unknown, std::vector<int32_t>* ids) const;

  /// A trie over the bytes of the pieces as a double array: the child of `node` by byte c is
  /// node.base ^ c, if that unit's parent is the node.
  struct Unit {
    uint32_t base = 0, parent = kFree;
    int32_t id = -1;  // of the piece that ends here
    float score = 0;
  };
  static constexpr uint32_t kFree = UINT32_MAX;
  class Builder;

  const SpmNormalizer normalizer_;
  std::vector<Unit> trie_;
  float unknown_score_ = 0;
  int32_t unknown_id_ = -1;
  std::vector<int32_t> byte_ids_;  // [256]; empty: no byte fallback
};

}  // namespace loqal
