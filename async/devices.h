// The devices of Local-SGD's workers, from the user's words.
#pragma once
#include <string>
#include <vector>

#include "async/scheduler.h"

namespace loqal {

/// Levels of --heterogeneity: seconds per step of four devices, repeated for more workers. `very`
/// are the devices of the paper's notebook (0.58, 0.75, 1.51 and 3.33 s); the fastest is the same
/// at all levels.
std::vector<Device> heterogeneous_devices(const std::string& level, int64_t workers);

/// "1.72,1.33,0.66,0.3": steps per second, one for each worker. Usage error otherwise.
std::vector<Device> devices_of_speeds(const std::string& list, int64_t workers);

/// {"devices": [{"seconds_per_step": 0.58, "count": 2, "jitter": 0.1, "latency": 0.02, "up": 1e9,
/// "down": 1e9, "name": "..."}, ...]}; all but the first key are optional. One for each worker, or
/// usage error.
std::vector<Device> devices_of_profile(const std::string& path, int64_t workers);

}  // namespace loqal
