// One process per run: a second --resume while the first is alive would fork the log and the
// checkpoints.
#pragma once
#include <string>

namespace loqal {

/// Holds an advisory lock (flock) on OUT/.lock until it is destroyed or the process ends, however
/// it ends. Error naming the process that holds it.
class RunLock {
 public:
  explicit RunLock(const std::string& out);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace loqal
