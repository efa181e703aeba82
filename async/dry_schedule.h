// What --dry-run says about Local-SGD: the schedule alone, without a model.
#pragma once
#include <cstdint>
#include <ostream>

namespace loqal {

struct Options;

/// A table of the methods on the run's devices and for its number of steps: virtual time, pushes,
/// staleness, utilisation of each worker. bytes: of one transfer.
void print_schedule(std::ostream& out, const Options& options, int64_t bytes);

}  // namespace loqal
