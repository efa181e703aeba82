// Errors as help from a colleague: what is wrong, what was expected, what was found, what to do.
// One exception type carries the process's exit code (design.md, section 3):
//   1 files, devices, memory, disk   2 options and config files   3 non-finite loss or gradient
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace loqal {

enum class Exit { ok = 0, failure = 1, usage = 2, nonfinite = 3 };

struct Error : std::runtime_error {
  Error(Exit code, const std::string& message, std::string hint_ = "")
      : std::runtime_error(message), exit_code(code), hint(std::move(hint_)) {}
  Exit exit_code;
  std::string hint;  // what to do about it; may be empty
};

/// Concatenates anything streamable: cat("B=", B, " T=", T).
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

[[noreturn]] inline void fail(const std::string& message, const std::string& hint = "") {
  throw Error(Exit::failure, message, hint);
}
[[noreturn]] inline void fail_usage(const std::string& message, const std::string& hint = "") {
  throw Error(Exit::usage, message, hint);
}
[[noreturn]] inline void fail_nonfinite(const std::string& message, const std::string& hint = "") {
  throw Error(Exit::nonfinite, message, hint);
}

/// For mistakes of the program, not of the user.
#define LOQAL_ASSERT(condition, ...)                                                   \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      throw std::logic_error(                                                          \
          ::loqal::cat(__FILE__, ":", __LINE__, ": ", #condition, ": ", __VA_ARGS__)); \
  } while (0)

}  // namespace loqal
