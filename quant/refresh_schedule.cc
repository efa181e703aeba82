#include "quant/refresh_schedule.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace loqal {

std::vector<int64_t> RefreshSchedule::all() const {
  LOQAL_ASSERT(interval >= 1 && growth >= 0 && max_gap >= 0, interval, " ", growth, " ", max_gap);
  std::vector<int64_t> steps_of = {0};
  const double longest = max_gap > 0 ? double(max_gap) : double(steps) + 1;
  for (int i = 0;; i++) {
    // psi^i overflows long after the run's end.
    const double more = i == 0 || growth == 0 ? 0 : std::floor(std::pow(growth, i));
    const auto gap = int64_t(std::max(1.0, std::min(double(interval) + more, longest)));
    const int64_t next = steps_of.back() + gap;
    if (next > steps - interval) return steps_of;
    steps_of.push_back(next);
  }
}

}  // namespace loqal
