#include "optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace loqal {

double Schedule::at(int64_t step) const {
  if (step < warmup) return lr * double(step + 1) / double(warmup);
  const auto progress = [&](int64_t begin) {  // 0 at `begin`, 1 at the last step
    const int64_t length = steps - 1 - begin;
    return length <= 0 ? 0.0 : std::clamp(double(step - begin) / double(length), 0.0, 1.0);
  };
  switch (kind) {
    case Kind::constant: return lr;
    case Kind::linear: return lr + (min_lr - lr) * progress(warmup);
    case Kind::cosine:
      return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(M_PI * progress(warmup)));
    case Kind::wsd: return lr + (min_lr - lr) * progress(std::max(warmup, steps - steps / 5));
  }
  return lr;
}

Schedule::Kind schedule_kind(const std::string& name) {
  if (name == "cosine") return Schedule::Kind::cosine;
  if (name == "linear") return Schedule::Kind::linear;
  if (name == "wsd") return Schedule::Kind::wsd;
  if (name == "constant") return Schedule::Kind::constant;
  fail_usage(cat("--lr-schedule ", name, ": choose cosine, linear, wsd or constant"));
}

}  // namespace loqal
