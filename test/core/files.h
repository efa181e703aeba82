// What tests of files share: a directory that goes away, errors as text, a child process with
// limits.
#pragma once
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

#include "core/error.h"
#include "core/file.h"

namespace loqal {

/// Sanitizers hold memory of their own: what a test says about memory is then about them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // shadow memory would be measured as well
#else
constexpr bool kSanitized = false;
#endif

struct TempDir {
  std::string path;
  TempDir() {
    const char* base = getenv("TMPDIR");
    path = cat(base ? base : "/tmp", "/loqal_test_XXXXXX");
    if (!mkdtemp(path.data())) fail(cat(path, ": cannot create"));
  }
  ~TempDir() { remove_tree(path); }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};

/// The message of the Error that `run` throws; fails if it throws none.
inline std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no loqal::Error";
  return "";
}

/// Runs `check` in a process of its own, so that it may limit or kill itself.
inline bool true_in_child(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(check() ? 0 : 1);
    } catch (const std::exception& error) {
      fprintf(stderr, "in the child: %s\n", error.what());
      _exit(2);
    }
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status == 0;
}

/// Writes beyond this size fail with EFBIG: a full disk that needs no disk. For children only.
inline void limit_file_size(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, SIG_IGN);
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << text

}  // namespace loqal
