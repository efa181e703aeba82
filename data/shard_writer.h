// Writes PREFIX_000000.bin, PREFIX_000001.bin ... Nothing under a final name changes before all
// shards are complete and on disk: they grow as *.tmp and get their names together, in publish().
// An earlier run's shards of the same prefix are replaced, and its surplus ones removed, there.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "data/publish.h"
#include "data/shard.h"

namespace loqal {

struct WrittenShard {
  std::string path;  ///< final name
  int64_t tokens;
  std::string sha256;  ///< of the whole file
};

/// How far a set of shards has come: what another process needs to go on with it.
struct ShardProgress {
  std::vector<WrittenShard> complete;  ///< as *.tmp, on disk
  int64_t tokens = 0;                  ///< of the one behind them; 0: not begun
  FileSum sum;                         ///< of its *.tmp
};

class ShardWriter {
 public:
  /// `header` gives vocabulary, special ids, tokenizer hash (vocab_size > 0) and row length; count
  /// and width are the writer's. A shard holds at most `shard_tokens`, and whole rows only if there
  /// is a row length; otherwise a document may straddle two. Goes on behind `from`, whose files
  /// must be as they were (Error if not); other *.tmp of this prefix are removed.
  ShardWriter(const std::string& prefix, const ShardHeader& header, int64_t shard_tokens,
              const ShardProgress& from = {});
  ~ShardWriter();  ///< removes the *.tmp files, unless publish() or keep() was reached
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Appends ids. Error for a full disk, and for an id outside the vocabulary, before narrowing it.
  void write(std::span<const int32_t> ids);
  int64_t tokens() const { return tokens_; }

  /// Hands all that was written to the system; a killed process does not lose it.
  ShardProgress flush();
  /// The *.tmp stay, for a later writer that goes on from the last flush().
  void keep();

  /// Completes the *.tmp files.
  const std::vector<WrittenShard>& finish();
  /// After finish(): gives them their names, and writes PREFIX.json: format, version, the fields of
  /// `manifest`, tokens and shards.
  void publish(const Json& manifest = Json::object());

 private:
  void open_next();
  void close_current();
  void resume(const ShardProgress& from);

  const std::string prefix_;
  ShardHeader header_;
  const int64_t shard_tokens_;
  std::vector<WrittenShard> shards_;     // the last one is the current one, if there is one
  std::unique_ptr<FileWriter> current_;  // its *.tmp
  std::vector<uint8_t> narrow_;          // ids in the file's width
  int64_t tokens_ = 0;
  bool kept_ = false;
};

}  // namespace loqal
