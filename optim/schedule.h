// Learning-rate schedules as pure functions of the step: nothing to save, nothing to restore.
#pragma once
#include <cstdint>
#include <string>

namespace loqal {

struct Schedule {
  enum class Kind { constant, linear, cosine, wsd };
  Kind kind = Kind::cosine;
  double lr = 3e-4;      ///< the peak
  double min_lr = 3e-5;  ///< reached at the last step
  int64_t warmup = 0;    ///< steps; step 0 already moves: lr / warmup
  int64_t steps = 1;     ///< of the whole run

  /// Learning rate of step in [0, steps). Warm-up: lr (step+1)/warmup. Then, with x in [0, 1] from
  /// the end of warm-up to the last step: cosine min + (lr-min)(1+cos(pi x))/2 (Loshchilov & Hutter
  /// 2017); linear; wsd (Hu et al. 2024): constant, then linear to min_lr over the last fifth of
  /// the run; constant.
  double at(int64_t step) const;
};

/// Usage error naming the option if `name` is none of cosine, linear, wsd, constant.
Schedule::Kind schedule_kind(const std::string& name);

}  // namespace loqal
