// The bytes of a file, streamed, inflated if they are gzip; its bytes say what it is, not its name.
// zlib's gzread is not used: it takes a cut stream for an end of file and ignores garbage after it.
#pragma once
#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "data/sha256.h"
#include "data/sniff.h"

namespace loqal {

class ByteSource {
 public:
  /// Error if the file cannot be opened or is of a kind that holds no text for us (HTML, parquet,
  /// zstd, a token shard ...), found plain or inside gzip. An empty file is valid and has no bytes.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Up to `size` bytes of content; 0 at the end. Error with the byte offset in the file for a gzip
  /// stream that is cut, damaged (CRC, length) or followed by garbage. Members are concatenated.
  size_t read(char* out, size_t size);

  FileKind content() const { return content_; }          ///< of the (inflated) content
  uint64_t file_offset() const { return file_offset_; }  ///< bytes read from the file so far
  /// Of the file as it lies on disk, computed while it is read. Reads what is left of it; call
  /// once.
  std::string file_sha256();

 private:
  size_t read_file(char* out, size_t size);
  size_t inflate_some(char* out, size_t size);
  bool next_member();
  bool fill();  // input_ from the file; false at its end
  [[noreturn]] void fail_gzip(const std::string& what) const;
  void refuse(FileKind kind) const;

  const std::string path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
  bool gzip_ = false;
  FileKind content_ = FileKind::empty;
  uint64_t file_offset_ = 0;
  Sha256 digest_;            // of those bytes
  std::vector<char> input_;  // compressed bytes that zlib is working on
  std::string head_;         // content that was read for sniffing and comes first
  z_stream zlib_ = {};
  bool member_ended_ = false;  // nothing is known yet of what follows it
};

}  // namespace loqal
