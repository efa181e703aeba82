#include "async/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace loqal {

RunLock::RunLock(const std::string& out) {
  const std::string path = out + "/.lock";
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(cat(path, ": cannot create the lock file: ", std::strerror(errno)));
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    const std::string pid = cat(getpid(), "\n");
    // The number is for the message of others: on a full disk the lock holds without it.
    [[maybe_unused]] const bool written =
        ftruncate(fd_, 0) == 0 && write(fd_, pid.data(), pid.size()) > 0;
    return;
  }
  const int error = errno;
  char pid[32] = {};
  const ssize_t length = read(fd_, pid, sizeof pid - 1);
  close(fd_);
  if (error != EWOULDBLOCK) fail(cat(path, ": cannot lock: ", std::strerror(error)));
  fail(
      cat(out, ": another process trains here", length > 0 ? cat(", number ", std::atoi(pid)) : ""),
      "stop it first, or choose another --out");
}

RunLock::~RunLock() { close(fd_); }

}  // namespace loqal
