// A SentencePiece model as data: its pieces, and how it normalizes text. The library that trains
// and decodes these models hides both; data/unigram.h needs them. The format is the protobuf of
// google/sentencepiece, src/sentencepiece_model.proto; normalization follows its src/normalizer.cc.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loqal {

struct SpmPiece {
  enum Type { normal = 1, unknown, control, user_defined, unused, byte };
  std::string text;  ///< U+2581 stands for a blank
  float score = 0;
  int type = normal;

  /// True if normalized text can hold it: a raw blank in it would match nothing.
  bool can_match() const {
    return type == normal && !text.empty() && text.find(' ') == std::string::npos;
  }
  std::string spelled() const;  ///< with ' ' for U+2581, as SpmNormalizer writes it
};

struct SpmModel {
  enum Type { unigram = 1, bpe, word, character };
  int type = unigram;
  std::vector<SpmPiece> pieces;  ///< by id
  bool byte_fallback = false, blank_is_suffix = false;
  bool add_dummy_prefix = true, remove_extra_blanks = true, escape_blanks = true;
  std::string charsmap;  ///< replacement rules, compiled; "": none

  /// True if a piece is of this type.
  bool has(SpmPiece::Type piece_type) const;
};

/// What stands for characters that are in no piece: bytes if the model has them, else one unknown
/// id for a run of such characters.
class SpmUnknown {
 public:
  explicit SpmUnknown(const SpmModel& model);
  int32_t id() const { return id_; }  ///< -1: the model has none
  /// `character`: of normalized text. `after_unknown`: the one before was in no piece, either.
  void append(std::string_view character, bool after_unknown, std::vector<int32_t>* ids) const;

 private:
  int32_t id_ = -1;
  std::vector<int32_t> byte_ids_;  // [256]; empty: no byte fallback
};

/// False if `bytes` are not a well-formed model.
bool parse_spm_model(std::string_view bytes, SpmModel* model);

/// Replaces characters by the model's rules, puts a blank in front, removes extra blanks: what the
/// model says of the three.
class SpmNormalizer {
 public:
  /// Supports models with escape_blanks and without blank_is_suffix.
  explicit SpmNormalizer(const SpmModel& model);

  /// `text` is valid UTF-8. In the result a blank is ' ', also where the text has U+2581 itself: in
  /// the library both are U+2581.
  std::string normalize(std::string_view text) const;
  /// Bytes of the longest user-defined piece that `text` begins with, or 0. Rules do not touch it.
  size_t user_defined(std::string_view text) const;

 private:
  struct Step {
    std::string_view text;  // replacement of
    size_t length;          // so many bytes
  };
  Step step(std::string_view text) const;
  size_t longest_rule(std::string_view text, uint32_t* value) const;
  uint32_t unit(size_t at) const { return at < trie_.size() ? trie_[at] : kNoUnit; }

  static constexpr uint32_t kNoUnit = 1u << 31;  // fits no label
  const bool add_dummy_prefix_, remove_extra_blanks_;
  std::vector<uint32_t> trie_;  // a double array of Darts-clone
  std::string replacements_;    // each ends with NUL; the trie's values are offsets
  std::vector<std::string> user_defined_;
  bool plain_[128] = {};  // ASCII: no rule begins here, unless what follows is not ASCII
};

}  // namespace loqal
