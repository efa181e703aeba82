#include "async/signals.h"

#include <unistd.h>

#include <csignal>

namespace loqal {

namespace {

volatile std::sig_atomic_t g_signal = 0;  // all that a handler may safely write

void on_signal(int signal) {
  if (g_signal != 0) _exit(signal_exit_code(signal));  // files are replaced by renames: nothing is torn
  g_signal = signal;
}

}  // namespace

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() { return g_signal; }

int signal_exit_code(int signal) { return 128 + signal; }

}  // namespace loqal
