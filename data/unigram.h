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

  /// A trie over the bytes of the pieces as a double array. A unit is base << 10 | leaf << 9 |
  /// label: the child of a node by byte c is unit base ^ c, if its label is c. Four bytes, since
  /// what costs is the cache: no two nodes have the same base, so the label alone tells whose child
  /// a unit is.
  static constexpr uint32_t kFree = 256;  // a label that no byte has
  static constexpr uint32_t kRoot = 256;  // block 0 stays free: base 0 is a node without children
  struct Piece {
    float score;
    int32_t id;
  };
  class Builder;

  const SpmNormalizer normalizer_;
  const SpmUnknown unknown_;
  std::vector<uint32_t> trie_;
  std::vector<Piece> pieces_;  // of each leaf unit of the trie
  float unknown_score_ = 0;
};

}  // namespace loqal
