#include "data/text_reader.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/suggest.h"
#include "data/json_text.h"
#include "data/utf8.h"

namespace loqal {
namespace {

constexpr size_t kChunk = size_t(1) << 16;
constexpr size_t kFirstPlaces = 5;
constexpr const char* kUnreadable = "unreadable or damaged file";

std::string separator_of(const ReadOptions& options) {
  switch (options.split) {
    case Split::file: return "";
    case Split::line: return "\n";
    case Split::blank: return "\n\n";
    case Split::separator: return options.separator;
  }
  return "";
}

/// "c4-train.00000.json.gz", "x.jsonl". Bytes say what a file is; a name only that a broken first
/// line is one of JSON, or half a corpus would pass as plain text.
bool has_json_name(const std::string& path) {
  return std::filesystem::path(path).filename().string().find(".json") != std::string::npos;
}

int64_t count_lines(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

}  // namespace

void SkipReport::add(const std::string& reason, const std::string& where) {
  Entry& entry = entries_[reason];
  entry.count++;
  if (entry.first.size() < kFirstPlaces) entry.first.push_back(where);
}

void SkipReport::add(const SkipReport& later) {
  for (const auto& [reason, entry] : later.entries_) {
    Entry& mine = entries_[reason];
    mine.count += entry.count;
    for (const std::string& where : entry.first)
      if (mine.first.size() < kFirstPlaces) mine.first.push_back(where);
  }
}

int64_t SkipReport::total() const {
  int64_t sum = 0;
  for (const auto& [reason, entry] : entries_) sum += entry.count;
  return sum;
}

Splitter::Splitter(ByteSource* source, std::string separator, bool keep, int64_t max_bytes)
    : source_(source),
      separator_(std::move(separator)),
      keep_(keep),
      max_bytes_(size_t(max_bytes)) {}

bool Splitter::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t old = buffer_.size();
  buffer_.resize(old + kChunk);
  const size_t n = source_->read(buffer_.data() + old, kChunk);
  buffer_.resize(old + n);
  if (!started_ && buffer_.starts_with("\xef\xbb\xbf")) begin_ = 3;  // a byte order mark is no text
  started_ = true;
  return n > 0;
}

/// Moves the next bytes of the buffer into the piece.
void Splitter::take(size_t bytes) {
  const std::string_view text = std::string_view(buffer_).substr(begin_, bytes);
  line_ += count_lines(text);
  if (piece_.size() + bytes > max_bytes_) {
    too_long_ = true;
    piece_.clear();
  }
  if (!too_long_) piece_ += text;
  begin_ += bytes;
}

bool Splitter::next() {
  piece_.clear();
  too_long_ = false;
  start_line_ = line_;
  for (;;) {
    const size_t found = separator_.empty() ? std::string::npos : buffer_.find(separator_, begin_);
    if (found != std::string::npos) {
      const size_t text = found - begin_;
      take(keep_ ? text + separator_.size() : text);
      if (!keep_) {
        line_ += count_lines(separator_);
        begin_ += separator_.size();
      }
      return true;
    }
    // The separator may straddle the end of the buffer: leave its length less one.
    const size_t left = buffer_.size() - begin_;
    const size_t tail = std::min(left, separator_.empty() ? 0 : separator_.size() - 1);
    take(left - tail);
    if (!fill()) {
      take(buffer_.size() - begin_);
      return !piece_.empty() || too_long_;
    }
  }
}

TextReader::TextReader(const std::string& path, const ReadOptions& options, SkipReport* skipped)
    : path_(path), options_(options), skipped_(skipped) {
  try {
    source_ = std::make_unique<ByteSource>(path);
  } catch (const Error& e) {
    if (!options.skip_bad) throw;
    skipped_->add(kUnreadable, e.what());
    return;
  }
  const FileKind kind = source_->content();
  json_ = kind == FileKind::json_lines || (kind == FileKind::other && has_json_name(path));
  splitter_ =
      std::make_unique<Splitter>(source_.get(), json_ ? "\n" : separator_of(options),
                                 !json_ && options.split == Split::blank, options.max_doc_bytes);
}

/// The next piece, with the number of documents added to a damaged stream's error.
bool TextReader::advance() {
  if (!splitter_) return false;
  try {
    return splitter_->next();
  } catch (const Error& e) {
    const std::string message = cat(e.what(), ", after ", documents_, " documents");
    if (!options_.skip_bad) throw Error(e.exit_code, message, e.hint);
    skipped_->add(kUnreadable, message);
    splitter_.reset();
    return false;
  }
}

bool TextReader::next(std::string* document) {
  while (!(options_.interrupted && options_.interrupted()) && advance()) {
    Defect defect;
    if (accept(document, &defect)) {
      documents_++;
      return true;
    }
    const std::string where = cat(path_, ":", defect.line);
    if (!options_.skip_bad)
      fail(cat(where, ": ", defect.reason, defect.detail.empty() ? "" : ": ", defect.detail),
           defect.hint.empty() ? "--on-error skip counts such documents and goes on" : defect.hint);
    skipped_->add(defect.reason, where);
  }
  return false;
}

bool TextReader::accept(std::string* document, Defect* defect) const {
  const std::string& piece = splitter_->piece();
  const auto reject = [&](const char* reason, const std::string& detail, const char* hint = "") {
    *defect = {reason, detail, hint, splitter_->line()};
    return false;
  };
  if (splitter_->too_long())
    return reject("document too long", cat("more than ", options_.max_doc_bytes, " bytes"),
                  "--split says where documents end; --max-doc-bytes raises the limit");
  const size_t bad = invalid_utf8(piece);
  if (bad != std::string::npos) {
    reject("invalid UTF-8",
           cat("byte ", int(uint8_t(piece[bad])), ", ", bad, " bytes into the document"));
    defect->line += count_lines(std::string_view(piece).substr(0, bad));
    return false;
  }
  if (json_) return accept_json(document, defect);
  *document = piece;
  if (options_.split == Split::line && document->ends_with('\r')) document->pop_back();
  return true;
}

bool TextReader::accept_json(std::string* document, Defect* defect) const {
  const std::string& line = splitter_->piece();
  const auto reject = [&](const char* reason, const std::string& detail, std::string hint = "") {
    *defect = {reason, detail, std::move(hint), splitter_->line()};
    return false;
  };
  if (line.find_first_not_of(" \t\r") == std::string::npos)
    return reject("empty line", "expected a JSON object");
  if (plain_json_text(line, options_.text_field, document)) return true;
  JsonText found = read_json_text(line, options_.text_field);
  if (!found.error.empty()) return reject("malformed JSON", found.error);
  if (found.type.empty())
    return reject("missing text field", cat("no field '", options_.text_field, "'"),
                  found.names.empty() ? ""
                                      : cat("--text-field names it; did you mean '",
                                            closest(options_.text_field, found.names), "'?"));
  if (found.type != "string")
    return reject("text is no string", cat("'", options_.text_field, "' is ", found.type));
  *document = std::move(found.text);
  return true;
}

std::string TextReader::file_sha256() {
  return source_ ? source_->file_sha256() : sha256_file(path_);
}

}  // namespace loqal
