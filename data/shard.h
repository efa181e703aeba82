// Token shards: llm.c's .bin files (doc/data_format.md), 16 bits a token up to a vocabulary of
// 65536, 32 bits above. The header's spare words say which vocabulary and tokenizer the ids belong
// to, so that a wrong combination is an error at start-up; llm.c ignores them, and its own files
// read as "unknown". Reference: karpathy/llm.c, dev/data/data_common.py and llmc/dataloader.h.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/file.h"

namespace loqal {

constexpr int64_t kShardHeaderBytes = 1024;                  ///< 256 little-endian int32
constexpr int64_t kMaxShardTokens = (int64_t(1) << 31) - 1;  ///< the count is an int32
constexpr int32_t kShardMagic16 = 20240520, kShardVersion16 = 1;
constexpr int32_t kShardMagic32 = 20240801, kShardVersion32 = 7;

struct ShardHeader {
  int bytes_per_token = 2;  ///< 2 or 4
  int64_t tokens = 0;
  int vocab_size = 0;                ///< every id is below it; 0: unknown (written by llm.c)
  int bos = -1, eos = -1, pad = -1;  ///< ids; -1: none or unknown
  uint64_t tokenizer_hash = 0;       ///< Tokenizer::hash(); 0: unknown
  int row_length = 0;  ///< tokens of one padded row; 0: documents are packed end to end

  int64_t file_bytes() const { return kShardHeaderBytes + tokens * bytes_per_token; }
};

/// Width that a vocabulary needs: 2 bytes up to 65536 ids, else 4.
int bytes_per_token(int vocab_size);

/// Checks the first `available` bytes of a file of `file_size` bytes. `name` is for the messages.
/// Error (exit 1) with expected and found for a wrong magic, version, size or field.
ShardHeader parse_shard_header(const uint8_t* data, size_t available, uint64_t file_size,
                               const std::string& name);
ShardHeader read_shard_header(const std::string& path);
/// Fills out[1024]; the inverse of parse_shard_header.
void format_shard_header(const ShardHeader& header, uint8_t* out);

/// One open shard. It is read, not mapped: windows from all over a corpus would otherwise keep
/// most of it in memory, and a file that shrinks would end the process instead of being an Error.
class Shard {
 public:
  /// vocab_size: of the model; 0: not known, no limit. The header's own counts as well.
  Shard(const std::string& path, int vocab_size);

  const ShardHeader& header() const { return header_; }
  /// out[count] = tokens [begin, begin + count); the range must lie inside the shard. Error with
  /// file, token offset, id and vocabulary for an id outside the vocabulary.
  void read(int64_t begin, int64_t count, int32_t* out) const;
  /// The same check of all ids.
  void scan() const;

 private:
  void read_bytes(int64_t begin, int64_t count, std::vector<uint8_t>* bytes) const;
  void check_ids(const std::vector<uint8_t>& bytes, int64_t begin) const;

  const ReadOnlyFile file_;
  const ShardHeader header_;
  int limit_;  // ids are below it
};

}  // namespace loqal
