// Ctrl-C, SIGTERM and SIGHUP: the first asks the run to save and end, and says so at once, as a
// round of Local-SGD may take minutes; the second ends it at once.
#pragma once

namespace loqal {

/// Starts to watch for SIGINT, SIGTERM and SIGHUP; a second call does nothing. Call it before any
/// other thread starts.
void watch_signals();

/// The signal that asked for an end (SIGINT, SIGTERM or SIGHUP), 0 if none has come.
int stop_signal();

const char* signal_name(int signal);  ///< as users know them

/// 129, 130 or 143: the exit code after that signal.
int signal_exit_code(int signal);

}  // namespace loqal
