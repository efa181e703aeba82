// The log of a run that a full disk, or another trouble with the file, does not end: records wait
// in memory, some 200 bytes each, and are written later.
#pragma once
#include <vector>

#include "async/console.h"
#include "core/log.h"

namespace loqal {

class RunLog {
 public:
  /// As JsonlLog, without or with `resume_step`.
  RunLog(Console& console, const std::string& path, std::optional<int64_t> resume_step)
      : console_(console), log_(path, resume_step) {}

  /// Of a session's begin, when an error costs nothing: as JsonlLog's.
  void write(const Json& line) { log_.write(line); }
  /// Never throws for a file that cannot be written: the console shows a warning when records begin
  /// to wait.
  void record(const Json& line);
  /// Of a session's end. Error if records still wait.
  void require_written() const;
  const std::string& path() const { return log_.path(); }

 private:
  Console& console_;
  JsonlLog log_;
  std::vector<Json> waiting_;
};

}  // namespace loqal
