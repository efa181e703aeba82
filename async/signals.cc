#include "async/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>
#include <utility>

namespace loqal {

namespace {

std::atomic<int> g_signal = 0;

}  // namespace

// A thread that waits for signals, and no handler: oneDNN's generated GEMM code uses the stack
// pointer for other things, and a handler that the kernel starts in the middle of it writes into
// the heap (oneDNN 2.6.3: one SIGTERM in eight crashed the program).
void watch_signals() {
  static bool watching = false;
  if (std::exchange(watching, true)) return;
  sigset_t set;
  sigemptyset(&set);
  // One that the parent ignores stays ignored (nohup, a shell's background job): Linux would
  // deliver it to sigwait all the same, because it is blocked.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction inherited = {};
    sigaction(number, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  // `./train | tee log`: Ctrl-C ends tee first, and the step must be saved.
  signal(SIGPIPE, SIG_IGN);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // threads that start later inherit it
  std::thread([set] {
    for (int signal = 0; sigwait(&set, &signal) == 0;) {
      if (g_signal.exchange(signal) != 0)
        _exit(signal_exit_code(signal));  // renames: no file is torn
      std::fprintf(stderr, "%sfinishing what has begun; a second signal ends at once\n",
                   isatty(STDERR_FILENO) ? "\n" : "");
    }
  }).detach();
}

int stop_signal() { return g_signal; }

const char* signal_name(int signal) {
  return signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
}

int signal_exit_code(int signal) { return 128 + signal; }

}  // namespace loqal
