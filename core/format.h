// Numbers and times as people read them, for the console.
#pragma once
#include <string>

namespace loqal {

/// "1.2k", "3.4M": three digits at most.
std::string short_number(double value);
/// "3:05", "1:02:03".
std::string short_time(double seconds);
/// "[=====     ]" of `width` characters between the brackets, `share` of them filled.
std::string progress_bar(double share, int width);
/// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace loqal
