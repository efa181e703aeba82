// Ctrl-C and SIGTERM: the first asks the run to save and end, the second ends it at once.
#pragma once

namespace loqal {

/// Installs the handlers for SIGINT and SIGTERM.
void watch_signals();

/// The signal that asked for an end (SIGINT or SIGTERM), 0 if none has come.
int stop_signal();

/// 130 or 143: the exit code after that signal.
int signal_exit_code(int signal);

}  // namespace loqal
