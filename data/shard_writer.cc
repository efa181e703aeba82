#include "data/shard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "data/sha256.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

std::string tmp_path(const std::string& path) { return path + ".tmp"; }

/// Over the first bytes of a complete file.
void write_header(const std::string& path, const ShardHeader& header) {
  uint8_t words[kShardHeaderBytes];
  format_shard_header(header, words);
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written =
      fd >= 0 && pwrite(fd, words, sizeof words, 0) == ssize_t(sizeof words) && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!written) fail(cat(path, ": cannot write the header: ", std::strerror(error)));
}

/// Names of the form PREFIX_nnnnnn.bin or PREFIX_nnnnnn.bin.tmp on disk.
std::vector<std::string> existing_shards(const std::string& prefix) {
  const fs::path path(prefix);
  const std::string stem = path.filename().string() + "_";
  const fs::path parent = path.parent_path().empty() ? "." : path.parent_path();
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(parent)) {
    std::string rest = entry.path().filename().string();
    if (!rest.starts_with(stem)) continue;
    rest.erase(0, stem.size());
    const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    const std::string ending = rest.substr(digits);
    if (digits < 6 || (ending != ".bin" && ending != ".bin.tmp")) continue;
    found.push_back((path.parent_path() / entry.path().filename()).string());
  }
  return found;
}

}  // namespace

std::string shard_path(const std::string& prefix, int64_t index) {
  char number[32];
  std::snprintf(number, sizeof number, "_%06lld.bin", static_cast<long long>(index));
  return prefix + number;
}

void check_prefix(const std::string& prefix) {
  const fs::path path(prefix), parent = path.parent_path();
  if (path.filename().empty())
    fail(cat("--out ", prefix, ": expected a file prefix, found a folder"));
  if (!parent.empty()) create_directories(parent.string());
}

ShardWriter::ShardWriter(const std::string& prefix, const ShardHeader& header, int64_t shard_tokens)
    : prefix_(prefix), header_(header), shard_tokens_(shard_tokens) {
  LOQAL_ASSERT(header.vocab_size > 0 && shard_tokens > 0 && shard_tokens <= kMaxShardTokens,
               header.vocab_size, " ", shard_tokens);
  header_.bytes_per_token = bytes_per_token(header.vocab_size);
  check_prefix(prefix);
}

ShardWriter::~ShardWriter() {
  if (published_) return;
  for (const WrittenShard& shard : shards_) unlink(tmp_path(shard.path).c_str());
}

void ShardWriter::open_next() {
  const std::string path = shard_path(prefix_, int64_t(shards_.size()));
  current_ = std::make_unique<FileWriter>(tmp_path(path));
  shards_.push_back({path, 0, ""});
  const uint8_t blank[kShardHeaderBytes] = {};  // the count is known only at the end
  current_->write(blank, sizeof blank);
}

void ShardWriter::close_current() {
  current_->finish();
  current_.reset();
  header_.tokens = shards_.back().tokens;
  write_header(tmp_path(shards_.back().path), header_);
}

void ShardWriter::write(std::span<const int32_t> ids) {
  for (const int32_t id : ids)
    if (id < 0 || id >= header_.vocab_size)
      fail(cat(prefix_, ": token ", tokens_, " has id ", id, ", expected 0 to ",
               header_.vocab_size - 1, " (vocabulary size ", header_.vocab_size, ")"));
  while (!ids.empty()) {
    if (!current_) open_next();
    WrittenShard& shard = shards_.back();
    const size_t n = std::min(ids.size(), size_t(shard_tokens_ - shard.tokens));
    const size_t width = size_t(header_.bytes_per_token);
    narrow_.resize(n * width);
    for (size_t i = 0; i < n; i++) std::memcpy(&narrow_[i * width], &ids[i], width);
    current_->write(narrow_.data(), narrow_.size());
    shard.tokens += int64_t(n);
    tokens_ += int64_t(n);
    ids = ids.subspan(n);
    if (shard.tokens == shard_tokens_) close_current();
  }
}

const std::vector<WrittenShard>& ShardWriter::finish() {
  if (current_) close_current();
  for (WrittenShard& shard : shards_) shard.sha256 = sha256_file(tmp_path(shard.path));
  return shards_;
}

void ShardWriter::publish() {
  for (const WrittenShard& shard : shards_) rename_path(tmp_path(shard.path), shard.path);
  for (const std::string& path : existing_shards(prefix_)) {
    // Names, not paths: "a//b" and "a/b" are the same folder.
    const bool ours = std::any_of(shards_.begin(), shards_.end(), [&](const WrittenShard& s) {
      return fs::path(s.path).filename() == fs::path(path).filename();
    });
    if (!ours && unlink(path.c_str()) != 0)
      fail(cat(path, ": cannot remove this shard of an earlier run: ", std::strerror(errno)));
  }
  published_ = true;
}

}  // namespace loqal
