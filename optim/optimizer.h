// Optimizer: turns a group's gradient into an update of its parameters. It works group by group, so
// that per-layer updates and whole-model steps are the same code.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/param_table.h"
#include "ops/ops.h"

namespace loqal {

/// How an optimizer reaches the parameters it updates; the model provides it.
struct ParamAccess {
  const ParamTable* table;
  std::function<Tensor(int)> parameter;     ///< F32, or BF16 without a copy
  std::function<Tensor(int)> compute_copy;  ///< BF16 copy to be kept equal, or empty
};

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled, on 2-D weights only (Param::decays)
  uint64_t seed = 0;          ///< of the stochastic rounding of bf16 parameters
};

/// AdamW with fp32 moments. A step is: begin_step(), then update() once for each group.
class AdamW {
 public:
  AdamW(Ops& ops, const ParamAccess& params, const AdamWConfig& config);

  /// Starts the next step: Adam's step count (1, 2, ...) goes up by one.
  void begin_step(double lr) { step_++, lr_ = lr; }
  /// grads: the group's gradient, laid out as the group in the table; multiplied by `scale`
  /// (clipping).
  void update(int group, float* grads, double scale);

  // For checkpoints: named states, one tensor for each parameter.
  std::vector<std::string> state_names() const { return {"adam_m", "adam_v"}; }
  Tensor state(const std::string& name, int param) const;
  int64_t step_count() const { return step_; }
  void set_step_count(int64_t step) { step_ = step; }

 private:
  Ops& ops_;
  ParamAccess params_;
  AdamWConfig config_;
  Buffer m_, v_;
  int64_t step_ = 0;
  double lr_ = 0;
};

/// Square of the global norm of the gradients of one group; a non-finite sum throws Exit::nonfinite
/// and names the tensor.
double group_sum_squares(Ops& ops, const ParamTable& table, int group, float* grads);

/// Factor that brings a gradient of this norm to at most `clip` (0: never clips).
double clip_scale(double norm, double clip);

}  // namespace loqal
