// Encoder of SentencePiece BPE models. The ids are the library's (test/data); like data/unigram.h
// it exists because the library takes a hundred bytes of memory a byte of text, and here time that
// grows faster than the text where pieces go across words.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe_merge.h"
#include "data/spm_model.h"

namespace loqal {

/// Thread-safe.
class SpmBpe {
 public:
  /// Null for a model that is not of the kind: another type, user-defined or unused pieces, blanks
  /// as suffixes or not escaped. The library is for those.
  static std::unique_ptr<const SpmBpe> make(const SpmModel& model);

  /// Ids of valid UTF-8; a run of unknown characters is one unknown id, or bytes where the model
  /// has those.
  std::vector<int32_t> encode(std::string_view text) const;

 private:
  explicit SpmBpe(const SpmModel& model);
  int32_t symbol(const std::string& text);

  const SpmNormalizer normalizer_;
  const SpmUnknown unknown_;
  std::unordered_map<std::string, int32_t> symbols_;  // pieces: their ids; other characters: above
  std::vector<uint32_t> lengths_;                     // of each piece's spelling, in bytes
  std::unordered_map<std::string, int32_t> user_defined_;  // ids; they merge with nothing
  BpeMerges merges_;
};

}  // namespace loqal
