// Writes PREFIX_000000.bin, PREFIX_000001.bin ... Nothing under a final name changes before all
// shards are complete and on disk: they grow as *.tmp and are renamed together. An earlier run's
// shards of the same prefix are replaced, and its surplus ones removed, in that same step.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "data/shard.h"

namespace loqal {

struct WrittenShard {
  std::string path;  ///< final name
  int64_t tokens;
  std::string sha256;  ///< of the whole file
};

class ShardWriter {
 public:
  /// `header` gives vocabulary, special ids and tokenizer hash (vocab_size > 0); count and width
  /// are the writer's. A shard holds at most `shard_tokens`; a document may straddle two.
  ShardWriter(const std::string& prefix, const ShardHeader& header, int64_t shard_tokens);
  ~ShardWriter();  ///< removes the *.tmp files unless publish() was reached
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Appends ids. Error for a full disk, and for an id outside the vocabulary, before narrowing it.
  void write(std::span<const int32_t> ids);
  int64_t tokens() const { return tokens_; }

  /// Completes the *.tmp files (header, fsync) and hashes them.
  const std::vector<WrittenShard>& finish();
  /// Gives them their names and removes the earlier run's surplus shards. After finish().
  void publish();

 private:
  void open_next();
  void close_current();

  const std::string prefix_;
  ShardHeader header_;
  const int64_t shard_tokens_;
  std::vector<WrittenShard> shards_;     // the last one is the current one
  std::unique_ptr<FileWriter> current_;  // its *.tmp
  std::vector<uint8_t> narrow_;          // ids in the file's width
  int64_t tokens_ = 0;
  bool published_ = false;
};

/// Error unless files PREFIX... can have their folder: before the work, not after.
void check_prefix(const std::string& prefix);
/// PREFIX_000042.bin
std::string shard_path(const std::string& prefix, int64_t index);
}  // namespace loqal
