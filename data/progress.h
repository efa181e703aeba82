// How far ./tokenize is: a line redrawn in place on a terminal, now and then a plain line
// otherwise.
#pragma once
#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace loqal {

class Progress {
 public:
  /// The work: bytes of all inputs as they lie on disk, of which `done` before this process.
  Progress(std::ostream& log, bool terminal, int64_t total, int64_t done)
      : log_(log), terminal_(terminal), total_(total), before_(done) {}
  ~Progress() { clear(); }

  /// `done` bytes of the inputs; text bytes and documents of this process. Cheap: draws only when
  /// it is time to.
  void update(int64_t done, int64_t text_bytes, int64_t documents);

 private:
  using Clock = std::chrono::steady_clock;
  void clear();

  std::ostream& log_;
  const bool terminal_;
  const int64_t total_, before_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = start_;
  bool visible_ = false;
};

}  // namespace loqal
