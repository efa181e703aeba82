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

constexpr uint8_t kBlank[kShardHeaderBytes] = {};  // the count is known only at the end

/// Over the first bytes of a file.
void write_header(const std::string& path, const uint8_t (&words)[kShardHeaderBytes]) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written =
      fd >= 0 && pwrite(fd, words, sizeof words, 0) == ssize_t(sizeof words) && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!written) fail(cat(path, ": cannot write the header: ", std::strerror(error)));
}

/// A shard holds whole rows.
int64_t capacity(int64_t shard_tokens, int row_length) {
  return row_length > 0 ? shard_tokens / row_length * row_length : shard_tokens;
}

}  // namespace

ShardWriter::ShardWriter(const std::string& prefix, const ShardHeader& header, int64_t shard_tokens,
                         const ShardProgress& from)
    : prefix_(prefix), header_(header), shard_tokens_(capacity(shard_tokens, header.row_length)) {
  LOQAL_ASSERT(header.vocab_size > 0 && shard_tokens_ > 0 && shard_tokens <= kMaxShardTokens,
               header.vocab_size, " ", shard_tokens, " ", header.row_length);
  header_.bytes_per_token = bytes_per_token(header.vocab_size);
  check_prefix(prefix);
  resume(from);
}

void ShardWriter::resume(const ShardProgress& from) {
  for (const WrittenShard& shard : from.complete) {
    header_.tokens = shard.tokens;
    const std::string tmp = tmp_path(shard.path);
    const ShardHeader found = read_shard_header(tmp);
    if (found.tokens != shard.tokens || found.tokenizer_hash != header_.tokenizer_hash)
      fail(cat(tmp, ": expected ", shard.tokens, " tokens, found ", found.tokens));
    tokens_ += shard.tokens;
  }
  shards_ = from.complete;
  if (from.tokens > 0) {
    shards_.push_back({shard_path(prefix_, int64_t(shards_.size())), from.tokens, ""});
    // It may have been closed after the flush that `from` is of; the sum is that of an open one.
    write_header(tmp_path(shards_.back().path), kBlank);
    current_ = std::make_unique<FileWriter>(tmp_path(shards_.back().path), from.sum);
    tokens_ += from.tokens;
  }
  for (const std::string& path : existing_shards(prefix_, ".tmp")) {
    const bool ours = std::any_of(shards_.begin(), shards_.end(), [&](const WrittenShard& s) {
      return fs::path(tmp_path(s.path)).filename() == fs::path(path).filename();
    });
    if (!ours) remove_tree(path);
  }
}

ShardWriter::~ShardWriter() {
  if (kept_) return;
  for (const WrittenShard& shard : shards_) unlink(tmp_path(shard.path).c_str());
}

ShardProgress ShardWriter::flush() {
  ShardProgress progress{shards_, 0, {}};
  if (current_) {
    progress.sum = current_->flush();
    progress.tokens = shards_.back().tokens;
    progress.complete.pop_back();
  }
  return progress;
}

void ShardWriter::keep() {
  if (current_) current_->keep();
  kept_ = true;
}

void ShardWriter::open_next() {
  const std::string path = shard_path(prefix_, int64_t(shards_.size()));
  current_ = std::make_unique<FileWriter>(tmp_path(path));
  shards_.push_back({path, 0, ""});
  current_->write(kBlank, sizeof kBlank);
}

void ShardWriter::close_current() {
  current_->finish();
  current_.reset();
  WrittenShard& shard = shards_.back();
  header_.tokens = shard.tokens;
  uint8_t words[kShardHeaderBytes];
  format_shard_header(header_, words);
  write_header(tmp_path(shard.path), words);
  shard.sha256 = sha256_file(tmp_path(shard.path));
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
  return shards_;
}

void ShardWriter::publish(const Json& manifest) {
  LOQAL_ASSERT(!current_, prefix_, " is not finished");
  Json whole = {{"format", "loqal tokens"}, {"version", 1}};
  whole.update(manifest);
  whole["tokens"] = tokens_;
  whole["shards"] = Json::array();
  for (const WrittenShard& shard : shards_)
    whole["shards"].push_back({{"file", fs::path(shard.path).filename().string()},
                               {"tokens", shard.tokens},
                               {"sha256", shard.sha256}});
  kept_ = true;  // from here on they are needed, come what may
  publish_shards(prefix_, whole);
}

}  // namespace loqal
