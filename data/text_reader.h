// Documents from a file: JSON lines (the form of C4) or plain text, perhaps gzipped. Streams:
// memory is for one document (at most --max-doc-bytes) and a fixed buffer.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.h"

namespace loqal {

enum class Split {
  file,      ///< plain text: the file is one document
  line,      ///< a document ends at "\n" (or "\r\n"), which does not belong to it
  blank,     ///< a document ends after "\n\n", which belongs to it: llm.c's tinyshakespeare rule
  separator  ///< a document ends at a given string, which does not belong to it
};

struct ReadOptions {
  std::string text_field = "text";
  Split split = Split::file;
  std::string separator;                      ///< for Split::separator; not empty
  int64_t max_doc_bytes = int64_t(16) << 20;  ///< of a document, or of a JSON line
  bool skip_bad = false;                      ///< count and go on, instead of an error
  std::function<bool()> interrupted;          ///< asked before each document: read no more?
};

/// What was left out, by reason: how often, and where the first five times.
class SkipReport {
 public:
  struct Entry {
    int64_t count = 0;
    std::vector<std::string> first;
  };
  void add(const std::string& reason, const std::string& where);
  void add(const SkipReport& later);
  void set(const std::string& reason, const Entry& entry) { entries_[reason] = entry; }
  const std::map<std::string, Entry>& entries() const { return entries_; }
  int64_t total() const;

 private:
  std::map<std::string, Entry> entries_;
};

/// Cuts a stream at a separator, without ever holding more than one piece.
class Splitter {
 public:
  /// An empty separator: everything is one piece. `keep`: the separator is the end of its piece.
  Splitter(ByteSource* source, std::string separator, bool keep, int64_t max_bytes);
  /// False at the end. Pieces may be empty, but there is none behind a final separator.
  bool next();
  const std::string& piece() const { return piece_; }
  bool too_long() const { return too_long_; }   ///< over max_bytes: passed over, piece() is useless
  int64_t line() const { return start_line_; }  ///< where the piece starts, from 1

 private:
  void take(size_t bytes);
  bool fill();

  ByteSource* source_;
  const std::string separator_;
  const bool keep_;
  const size_t max_bytes_;
  std::string buffer_, piece_;
  size_t begin_ = 0;  // of what is left in the buffer
  bool too_long_ = false, started_ = false;
  int64_t line_ = 1, start_line_ = 1;
};

class TextReader {
 public:
  /// Skipped documents are added to `skipped`, which outlives the reader.
  TextReader(const std::string& path, const ReadOptions& options, SkipReport* skipped);

  /// The next document, valid UTF-8, perhaps empty; false at the end of the file, or if
  /// options.interrupted says so. Bad input
  /// (invalid UTF-8, malformed JSON, no or non-string text field, empty line, too long a document,
  /// a damaged gzip stream) is an Error that names file and line, or is counted if options say so;
  /// a damaged stream ends its file.
  bool next(std::string* document);
  int64_t documents() const { return documents_; }  ///< returned so far
  /// Bytes read from the file so far, of the compressed ones if it is gzip.
  uint64_t file_offset() const { return source_ ? source_->file_offset() : 0; }
  /// Of the whole file, computed in the same pass; call once, when next() has returned false.
  std::string file_sha256();

 private:
  struct Defect {
    std::string reason, detail, hint;
    int64_t line;
  };
  bool advance();
  bool accept(std::string* document, Defect* defect) const;
  bool accept_json(std::string* document, Defect* defect) const;

  const std::string path_;
  const ReadOptions options_;
  SkipReport* skipped_;
  bool json_ = false;  // JSON lines
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<Splitter> splitter_;  // null: the file could not be read and is skipped
  int64_t documents_ = 0;
};

}  // namespace loqal
