#include "data/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "core/file.h"

namespace loqal {

Journal::Journal(const std::string& prefix) : path_(prefix + ".partial") {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(cat(path_, ": cannot create: ", std::strerror(errno)));
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(fd_);
    fail(cat(path_, ": another ./tokenize is writing shards of this name"),
         "wait for it, or choose another --out");
  }
  const std::string text = read_file(path_);
  std::string_view rest = text;
  for (size_t length; (length = rest.find('\n')) != std::string_view::npos;) {
    try {
      lines_.push_back(parse_json(rest.substr(0, length), path_));
    } catch (const Error&) {
      break;  // a machine that lost power may have left anything
    }
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + int64_t(length) + 1);
    rest.remove_prefix(length + 1);
  }
  cut(lines_.size());
}

Journal::~Journal() { close(fd_); }

void Journal::cut(size_t count) {
  lines_.resize(count);
  ends_.resize(count);
  if (ftruncate(fd_, ends_.empty() ? 0 : ends_.back()) != 0)
    fail(cat(path_, ": cannot shorten: ", std::strerror(errno)));
}

void Journal::append(const Json& line) {
  const std::string text = dump_json(line) + "\n";
  if (write(fd_, text.data(), text.size()) != ssize_t(text.size()))
    fail(cat(path_, ": cannot write: ", std::strerror(errno)), "is the disk full?");
}

void Journal::remove() { remove_tree(path_); }

}  // namespace loqal
