#include "core/format.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace loqal {

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

std::string progress_bar(double share, int width) {
  const size_t full = size_t(double(width) * std::clamp(share, 0.0, 1.0));
  return "[" + std::string(full, '=') + std::string(size_t(width) - full, ' ') + "]";
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
