#include "async/console.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace loqal {

Console::Console(int64_t steps) : steps_(steps), terminal_(isatty(STDOUT_FILENO)) {}

void Console::clear() {
  if (drawn_) std::fputs("\r\033[K", stdout);
  drawn_ = false;
}

void Console::line(const std::string& text) {
  clear();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Console::step(int64_t step, const std::string& text, double seconds_per_step) {
  clear();
  const std::string left =
      short_time(double(std::max<int64_t>(steps_ - step, 0)) * seconds_per_step);
  if (terminal_) {
    const std::string bar = progress_bar(std::min(double(step) / double(steps_), 1.0), 20);
    std::printf("step %lld/%lld %s %s  %s left", static_cast<long long>(step),
                static_cast<long long>(steps_), bar.c_str(), text.c_str(), left.c_str());
    drawn_ = true;
    if (step >= steps_) std::puts(""), drawn_ = false;
  } else {
    std::printf("step %lld/%lld  %s  %s left\n", static_cast<long long>(step),
                static_cast<long long>(steps_), text.c_str(), left.c_str());
  }
  std::fflush(stdout);
}

}  // namespace loqal
