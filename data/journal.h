// PREFIX.partial: what a ./tokenize that is not finished has done so far, so that the same command
// goes on where it was interrupted. One JSON object a line: first what the work is, then an entry
// for each input that is complete. Removed when the shards have their names.
#pragma once
#include <string>
#include <vector>

#include "core/json.h"

namespace loqal {

class Journal {
 public:
  /// Opens or creates it and reads what is there; a last line that a crash cut off is left out.
  /// Error if another process has it open: two would write the same shards.
  explicit Journal(const std::string& prefix);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  const std::vector<Json>& lines() const { return lines_; }
  /// Forgets all lines but the first `count`.
  void cut(size_t count);
  /// One write(2): a kill leaves the line or a part of it, which the next reader leaves out.
  void append(const Json& line);
  void remove();

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  std::vector<Json> lines_;
  std::vector<int64_t> ends_;  // of each line, in bytes of the file
  int fd_ = -1;
};

}  // namespace loqal
