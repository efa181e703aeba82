// A corpus: all shards that a pattern matches, seen as one long list of training windows. Headers
// are checked at the start, ids before a batch of them is used, so that start-up does not grow with
// the corpus (design.md, "Data"): those of a shard of ordinary size all at once when it is first
// opened, those of a large one window by window, since a shuffle over thousands of large shards
// would begin with reading them all. A shard that was closed because too many are open is scanned
// again only if its file has changed since.
#pragma once
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "data/shard.h"

namespace loqal {

/// What the shards are compared with; path is for the messages.
struct TokenizerInfo {
  std::string path;
  int vocab_size;
  uint64_t hash;  ///< Tokenizer::hash()
};

struct CorpusFile {
  std::string path;
  int64_t tokens;
};

/// Not thread-safe: a window may open a shard. One Corpus per worker, or a lock.
class Corpus {
 public:
  /// `patterns`: globs or names; files are sorted by name, each taken once. `role` is "training" or
  /// "validation", for the messages. Error (exit 1) if a pattern matches nothing, a header is
  /// wrong, a shard's vocabulary is larger than `model_vocab`, or shards disagree with each other
  /// about vocabulary, tokenizer hash, special ids or row length, or with `tokenizer` (may be null)
  /// about the first two, or if a ./tokenize left them half replaced. Headers written by llm.c say
  /// nothing and agree with everything.
  Corpus(const std::vector<std::string>& patterns, const std::string& role, int model_vocab,
         const TokenizerInfo* tokenizer = nullptr);

  /// Error naming a file and the value of both sides if `other` (the validation set, say) was made
  /// by another tokenizer: vocabulary, tokenizer hash and special ids, as far as both know them.
  void check_same_tokenizer(const Corpus& other) const;

  const std::string& role() const { return role_; }
  const std::vector<CorpusFile>& files() const { return files_; }
  int64_t tokens() const { return tokens_; }
  /// What a resume must find unchanged: SHA-256 of the tokenizer's hash and of the names and
  /// lengths of the shards, not of where they lie.
  std::string fingerprint() const;
  int vocab_size() const { return known_.vocab_size; }               ///< 0: unknown
  uint64_t tokenizer_hash() const { return known_.tokenizer_hash; }  ///< 0: unknown
  int bos() const { return known_.bos; }  ///< -1: none or unknown; eos, pad as well
  int eos() const { return known_.eos; }
  int pad() const { return known_.pad; }
  int row_length() const { return known_.row_length; }  ///< 0: packed, or unknown
  /// The id that stands before a text in this data: bos if the first shard begins with it, else eos
  /// if that shard has one near its start (before each text or between two), else -1. Opens it.
  int start_token();

  /// Packed shards: window w of a shard is its tokens [wT, wT + T], inputs and targets shifted by
  /// one. They tile the shard, so that every token but the first, and but up to T - 1 at the end,
  /// is a target exactly once. floor((n - 1) / T) per shard.
  ///
  /// Padded shards: a window is a row. Its last position has no target, and neither has padding.
  /// Error unless T is the row length.
  int64_t windows(int T) const;
  /// Tokens (of all shards) that are in no window: the first and the ragged end of each packed one.
  int64_t dropped(int T) const;
  /// tokens[T], targets[T] of window w in [0, windows(T)). Target -1: none, the loss ignores it.
  void window(int64_t w, int T, int32_t* tokens, int32_t* targets);

 private:
  void check_agreement(size_t file, const ShardHeader& header);
  void check_tokenizer(const TokenizerInfo& tokenizer) const;
  const Shard& open(size_t file);
  int64_t windows_in(int64_t tokens, int T) const;
  void mask_padding(const int32_t* row, int32_t* targets) const;

  const std::string role_;
  const int model_vocab_;
  std::vector<CorpusFile> files_;
  int64_t tokens_ = 0;
  ShardHeader known_;      // of the first shard that says what it is; zeros and -1 until then
  size_t known_file_ = 0;  // that shard
  std::vector<std::unique_ptr<Shard>> shards_;            // per file; null unless open
  std::vector<std::filesystem::file_time_type> scanned_;  // per file; min(): not yet
  std::list<size_t> recent_;                              // open files, the latest first
  int index_T_ = 0;                                       // first_window_ is for this T
  std::vector<int64_t> first_window_;                     // [files + 1]
  std::vector<int32_t> row_;                              // [T + 1]
};

}  // namespace loqal
