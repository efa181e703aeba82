#include "data/progress.h"

#include <algorithm>

#include "core/format.h"

namespace loqal {

void Progress::update(int64_t done, int64_t text_bytes, int64_t documents) {
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - drawn_).count();
  if (since < (terminal_ ? 0.2 : 10)) return;
  drawn_ = now;
  const double seconds = std::max(1e-3, std::chrono::duration<double>(now - start_).count());
  const double share = double(done) / double(std::max<int64_t>(1, total_));
  const double left =
      double(total_ - done) * seconds / double(std::max<int64_t>(1, done - before_));
  clear();
  log_ << format("%3.0f %% ", 100 * share) << (terminal_ ? progress_bar(share, 20) + " " : "")
       << format("%.1f MB/s, %s documents/s, %s left", double(text_bytes) / seconds / 1e6,
                 short_number(double(documents) / seconds).c_str(), short_time(left).c_str());
  if (!terminal_) log_ << "\n";
  visible_ = terminal_;
  log_.flush();
}

void Progress::clear() {
  if (visible_) log_ << "\r\033[K" << std::flush;
  visible_ = false;
}

}  // namespace loqal
