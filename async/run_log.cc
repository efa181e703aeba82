#include "async/run_log.h"

#include "core/error.h"

namespace loqal {

void RunLog::record(const Json& line) {
  const bool waited = !waiting_.empty();
  waiting_.push_back(line);
  try {
    while (!waiting_.empty()) {
      log_.write(waiting_.front());
      waiting_.erase(waiting_.begin());
    }
  } catch (const Error& e) {
    if (!waited)
      console_.line(cat("warning: ", e.what(), "; training goes on, the log is written later"));
  }
}

void RunLog::require_written() const {
  if (!waiting_.empty())
    fail(cat(path(), ": the last ", waiting_.size(), " records could not be written"),
         "the checkpoints are complete; free some space on the disk");
}

}  // namespace loqal
