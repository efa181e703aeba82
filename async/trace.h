// trace.json: a run of Local-SGD as a picture of who did what when, for ui.perfetto.dev and
// chrome://tracing.
#pragma once
#include <string>

namespace loqal {

/// Writes trace.json beside a log, from its "push" records: one row for each worker with what it
/// did on the virtual clock (pull, compute, push, wait), and one for the server's updates. So a
/// resumed run's trace is whole. Format: Trace Event Format, complete and instant events,
/// microseconds.
void write_trace(const std::string& log_path);

}  // namespace loqal
