// A command of the shell, run as a user types it. The tests' working directory is the repository's
// root.
#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace loqal {

struct Result {
  int status;
  std::string output;  // stdout and stderr
};

inline Result run(const std::string& command) {
  FILE* pipe = popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  std::string output;
  for (int c; (c = fgetc(pipe)) != EOF;) output += char(c);
  return {WEXITSTATUS(pclose(pipe)), output};
}

}  // namespace loqal
