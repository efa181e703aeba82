#include "data/corpus.h"

#include <algorithm>
#include <system_error>

#include "core/error.h"
#include "core/file.h"
#include "data/publish.h"
#include "data/sha256.h"

namespace loqal {
namespace {

constexpr size_t kMaxOpen = 64;  // keeps the table of open files small

constexpr int64_t kScanTokens = 1 << 24;  // a shard up to this long is scanned in milliseconds

constexpr int64_t kStartTokens = 1 << 20;  // where start_token() looks for an eos

constexpr const char* kSameTokenizer = "tokenize all data with one tokenizer and give that one";

std::vector<std::string> expand(const std::vector<std::string>& patterns, const std::string& role) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> found = glob_files(pattern);
    if (found.empty())
      fail(cat("no ", role, " data: no file matches '", pattern, "'"),
           "check the folder and the name; make shards with ./tokenize");
    paths.insert(paths.end(), found.begin(), found.end());
  }
  if (paths.empty()) fail(cat("no ", role, " data: no pattern given"));
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

/// min(), which means "not scanned", if nobody can tell.
std::filesystem::file_time_type changed(const std::string& path) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  return error ? std::filesystem::file_time_type::min() : time;
}

}  // namespace

Corpus::Corpus(const std::vector<std::string>& patterns, const std::string& role, int model_vocab,
               const TokenizerInfo* tokenizer)
    : role_(role), model_vocab_(model_vocab) {
  std::string checked;  // the prefix of the files so far: they are sorted
  std::string unknown;  // a file of llm.c
  for (const std::string& path : expand(patterns, role)) {
    const ShardHeader header = read_shard_header(path);
    if (const std::string prefix = prefix_of(path); prefix != checked) {
      check_published(path);
      checked = prefix;
    }
    files_.push_back({path, header.tokens});
    tokens_ += header.tokens;
    if (header.vocab_size > 0) check_agreement(files_.size() - 1, header);
    else unknown = path;
  }
  if (row_length() > 0 && !unknown.empty())
    fail(cat(files_[known_file_].path, " has rows of ", row_length(), " tokens (--pad-to), ",
             unknown, " (written by llm.c) has none"),
         kSameTokenizer);
  shards_.resize(files_.size());
  scanned_.assign(files_.size(), std::filesystem::file_time_type::min());
  if (tokenizer && known_.vocab_size > 0) check_tokenizer(*tokenizer);
}

void Corpus::check_agreement(size_t file, const ShardHeader& header) {
  const std::string& path = files_[file].path;
  if (header.vocab_size > model_vocab_)
    fail(cat(path, ": vocabulary size ", header.vocab_size, ", but the model has ", model_vocab_),
         "give the model the shards' vocabulary (--vocab), or tokenize again");
  if (known_.vocab_size == 0) {
    known_ = header;
    known_file_ = file;
    return;
  }
  const std::string& first = files_[known_file_].path;
  const auto same = [&](const char* what, const auto& a, const auto& b) {
    if (a != b)
      fail(cat(role_, " shards disagree: ", first, " has ", what, " ", a, ", ", path, " has ", b),
           kSameTokenizer);
  };
  same("vocabulary size", known_.vocab_size, header.vocab_size);
  same("tokenizer hash", to_hex(known_.tokenizer_hash), to_hex(header.tokenizer_hash));
  same("row length", known_.row_length, header.row_length);
  same("bos id", known_.bos, header.bos);
  same("eos id", known_.eos, header.eos);
  same("pad id", known_.pad, header.pad);
}

void Corpus::check_tokenizer(const TokenizerInfo& tokenizer) const {
  const std::string& path = files_[known_file_].path;
  if (tokenizer.vocab_size != known_.vocab_size)
    fail(cat(path, " has vocabulary size ", known_.vocab_size, ", the tokenizer ", tokenizer.path,
             " has ", tokenizer.vocab_size),
         kSameTokenizer);
  if (known_.tokenizer_hash != 0 && tokenizer.hash != known_.tokenizer_hash)
    fail(cat(path, " was made by the tokenizer with hash ", to_hex(known_.tokenizer_hash), ", ",
             tokenizer.path, " has ", to_hex(tokenizer.hash)),
         kSameTokenizer);
}

void Corpus::check_same_tokenizer(const Corpus& other) const {
  if (known_.vocab_size == 0 || other.known_.vocab_size == 0) return;
  const auto same = [&](const char* what, bool both_known, const auto& a, const auto& b) {
    if (both_known && a != b)
      fail(cat(role_, " and ", other.role_, " data disagree: ", files_[known_file_].path, " has ",
               what, " ", a, ", ", other.files_[other.known_file_].path, " has ", b),
           kSameTokenizer);
  };
  const ShardHeader &a = known_, &b = other.known_;
  same("vocabulary size", true, a.vocab_size, b.vocab_size);
  same("tokenizer hash", a.tokenizer_hash != 0 && b.tokenizer_hash != 0, to_hex(a.tokenizer_hash),
       to_hex(b.tokenizer_hash));
  same("bos id", a.bos >= 0 && b.bos >= 0, a.bos, b.bos);
  same("eos id", a.eos >= 0 && b.eos >= 0, a.eos, b.eos);
  same("pad id", a.pad >= 0 && b.pad >= 0, a.pad, b.pad);
}

int Corpus::start_token() {
  const auto file =
      std::find_if(files_.begin(), files_.end(), [](const CorpusFile& f) { return f.tokens > 0; });
  if (file == files_.end()) return -1;
  std::vector<int32_t> start(size_t(std::min(file->tokens, kStartTokens)));
  open(size_t(file - files_.begin())).read(0, int64_t(start.size()), start.data());
  if (bos() >= 0 && start[0] == bos()) return bos();
  if (row_length() > 0) return eos() >= 0 && start[0] == eos() ? eos() : -1;
  const bool has_eos = eos() >= 0 && std::find(start.begin(), start.end(), eos()) != start.end();
  return has_eos ? eos() : -1;
}

int64_t Corpus::windows_in(int64_t tokens, int T) const {
  if (row_length() > 0) return tokens / row_length();
  return tokens > 0 ? (tokens - 1) / T : 0;
}

int64_t Corpus::windows(int T) const {
  if (row_length() > 0 && row_length() != T)
    fail(cat(files_[known_file_].path, ": has rows of ", row_length(),
             " tokens (--pad-to), the model reads ", T),
         cat("give --seq-len ", row_length(), ", or tokenize with --pad-to ", T));
  int64_t total = 0;
  for (const CorpusFile& file : files_) total += windows_in(file.tokens, T);
  return total;
}

int64_t Corpus::dropped(int T) const { return tokens_ - windows(T) * T; }

const Shard& Corpus::open(size_t file) {
  if (shards_[file]) {
    recent_.splice(recent_.begin(), recent_, std::find(recent_.begin(), recent_.end(), file));
    return *shards_[file];
  }
  if (recent_.size() == kMaxOpen) {
    shards_[recent_.back()].reset();
    recent_.pop_back();
  }
  // The time is taken before the scan: a change during it is then seen at the next opening.
  const auto time = changed(files_[file].path), never = std::filesystem::file_time_type::min();
  const bool known = scanned_[file] != never && scanned_[file] == time;
  auto shard = std::make_unique<Shard>(files_[file].path, model_vocab_);
  if (shard->header().tokens != files_[file].tokens)
    fail(cat(files_[file].path, ": had ", files_[file].tokens, " tokens at the start, now ",
             shard->header().tokens),
         "do not rewrite shards under a running training");
  // Nothing is known about what llm.c wrote: it is scanned at any length.
  const bool whole = shard->header().vocab_size == 0 || files_[file].tokens <= kScanTokens;
  if (whole && !known) shard->scan();
  scanned_[file] = time;
  shards_[file] = std::move(shard);
  recent_.push_front(file);
  return *shards_[file];
}

void Corpus::window(int64_t w, int T, int32_t* tokens, int32_t* targets) {
  if (index_T_ != T) {
    index_T_ = T;
    first_window_.assign(1, 0);
    for (const CorpusFile& file : files_)
      first_window_.push_back(first_window_.back() + windows_in(file.tokens, T));
    row_.resize(size_t(T) + 1);
  }
  LOQAL_ASSERT(w >= 0 && w < first_window_.back(), "window ", w, " of ", first_window_.back());
  const auto next = std::upper_bound(first_window_.begin(), first_window_.end(), w);
  const size_t file = size_t(next - first_window_.begin()) - 1;
  const int64_t begin = (w - first_window_[file]) * T;
  const int count = row_length() > 0 ? T : T + 1;
  open(file).read(begin, count, row_.data());
  std::copy_n(row_.begin(), T, tokens);
  std::copy_n(row_.begin() + 1, count - 1, targets);
  if (row_length() > 0) mask_padding(row_.data(), targets);
}

/// The pad ids at the end of a row, but for the first if the same id ends documents: that one is
/// text. A row of nothing else has no target.
void Corpus::mask_padding(const int32_t* row, int32_t* targets) const {
  int text = row_length();
  while (text > 0 && row[text - 1] == pad()) text--;
  if (text < row_length() && pad() == eos()) text++;
  std::fill(targets + std::max(text - 1, 0), targets + row_length(), -1);
}

std::string Corpus::fingerprint() const {
  Sha256 digest;
  digest.update(cat(tokenizer_hash()));
  for (const CorpusFile& f : files_)
    digest.update(cat("\n", f.path.substr(f.path.find_last_of('/') + 1), " ", f.tokens));
  return to_hex(digest.digest());
}

}  // namespace loqal
