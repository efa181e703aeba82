#include "async/console.h"

#include <unistd.h>

#include <cstdarg>
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
  const std::string left = short_time(double(steps_ - step) * seconds_per_step);
  if (terminal_) {
    constexpr int kBar = 20;
    const int full = int(kBar * step / steps_);
    const std::string bar = std::string(size_t(full), '=') + std::string(size_t(kBar - full), ' ');
    std::printf("step %lld/%lld [%s] %s  %s left", static_cast<long long>(step),
                static_cast<long long>(steps_), bar.c_str(), text.c_str(), left.c_str());
    drawn_ = true;
    if (step == steps_) std::puts(""), drawn_ = false;
  } else {
    std::printf("step %lld/%lld  %s  %s left\n", static_cast<long long>(step),
                static_cast<long long>(steps_), text.c_str(), left.c_str());
  }
  std::fflush(stdout);
}

std::string short_number(double value) {
  for (const char* unit : {"", "k", "M", "G"}) {
    if (value < 999.5 || unit[0] == 'G')
      return format(value < 99.5 && unit[0] ? "%.1f%s" : "%.0f%s", value, unit);
    value /= 1000;
  }
  return "";
}

std::string short_time(double seconds) {
  const long long s = static_cast<long long>(seconds + 0.5);
  if (s >= 3600) return format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  return format("%lld:%02lld", s / 60, s % 60);
}

std::string format(const char* pattern, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace loqal
