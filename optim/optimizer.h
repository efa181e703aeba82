// Optimizer: turns a group's gradient into an update of its parameters. It works group by group, so
// that per-layer updates and whole-model steps are the same code.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/param_table.h"
#include "ops/ops.h"
#include "optim/moments.h"
#include "quant/subspace.h"

namespace loqal {

/// What one step does to one parameter.
struct ParamRule {
  double lr_factor = 1;  ///< on the step's learning rate
  bool decays = true;    ///< decoupled weight decay
  bool skip = false;     ///< parameter and moments stay as they are in this step
  double in_norm = 1;    ///< of the gradient, in the norm that clipping goes by
};

/// How an optimizer reaches the parameters it updates; the model provides it.
struct ParamAccess {
  const ParamTable* table;
  std::function<Tensor(int)> parameter;     ///< F32, or BF16 without a copy
  std::function<Tensor(int)> compute_copy;  ///< BF16 copy to be kept equal, or empty
  std::function<ParamRule(int)> rule = {};  ///< none: as the table says
  ParamRule rule_of(int param) const {
    const Param& p = (*table)[param];
    return rule ? rule(param) : ParamRule{.lr_factor = p.rate, .decays = p.decays()};
  }
};

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled, where ParamRule::decays
  uint64_t seed = 0;          ///< of the stochastic rounding of bf16 parameters
  int bits = 32;              ///< of the moments: 32 or 8 (Moments)
};

/// What becomes of a group's gradients (ParamTable::gradient) that are complete.
class Updater {
 public:
  virtual ~Updater() = default;
  /// Square of their norm, of those that update() will use; a non-finite sum throws Exit::nonfinite
  /// and names the tensor.
  virtual double sum_squares(int group, float* grads) = 0;
  /// Uses them, once in a step, multiplied by `scale` (clipping).
  virtual void update(int group, float* grads, double scale) = 0;
};

/// A step is: begin_step(), then update() once for each group.
class Optimizer : public Updater {
 public:
  /// Starts the next step: Adam's step count (1, 2, ...) goes up by one.
  void begin_step(double lr) { step_++, lr_ = lr; }
  double sum_squares(int group, float* grads) override;

  /// For checkpoints: what is kept for one trainable parameter, of any element type, by names such
  /// as "adam_m". With the vocabulary's padding.
  virtual std::vector<NamedState> states(int param) const = 0;
  Tensor state(const std::string& name, int param) const;  ///< the one of that name
  /// As if no step had been taken.
  virtual void reset() = 0;
  int64_t step_count() const { return step_; }
  void set_step_count(int64_t step) { step_ = step; }

 protected:
  Optimizer(Ops& ops, const ParamAccess& params) : ops_(ops), params_(params) {}

  Ops& ops_;
  ParamAccess params_;
  int64_t step_ = 0;
  double lr_ = 0;
};

/// What a change of the subspace that a low-rank factor lives in does to its moments.
enum class RefreshMoments { keep, reset, rotate };

/// What AdamW::change_basis() works in when it rotates, F32: three like the parameter, one [R, R].
struct BasisScratch {
  Tensor m, v, turned, square;
};

/// AdamW with moments in 32 or 8 bits.
class AdamW final : public Optimizer {
 public:
  AdamW(Ops& ops, const ParamAccess& params, const AdamWConfig& config);

  void update(int group, float* grads, double scale) override;
  std::vector<NamedState> states(int param) const override { return moments_.states(param); }
  void reset() override;

  /// What decoupled decay leaves in this step of a weight that has the step's rate.
  double decay() const { return 1 - lr_ * config_.weight_decay; }
  /// The first moment of one parameter in F32 [like it], for fill_omega().
  void first_moment(const Tensor& m, int param) const { moments_.read(m, {}, param); }
  /// The parameter's coordinates along its low-rank dimension (columns on the left side, rows on
  /// the right one) belong to a new basis from now on; rotation F32 [R, R] = new from old
  /// coordinates (quant/subspace.h, basis_change()), not read unless mode is rotate. Then
  /// (LDAdam, Robert et al. 2025), in step t, which has not touched them, and ^ for bias-corrected:
  ///     m = Q m,   v = (1 - b2^(t-1)) |(Q o Q)(v^ - m^ o m^) + (Q m^) o (Q m^)|.
  void change_basis(int param, Side side, const Tensor& rotation, RefreshMoments mode,
                    const BasisScratch& scratch);

 private:
  AdamWConfig config_;
  Moments moments_;
};

/// What Ops::adamw needs for one parameter.
AdamWArgs adamw_args(const AdamWConfig& config, const ParamRule& rule, double lr, int64_t step,
                     double grad_scale, int param);

/// Calls f(i) for each trainable parameter of the group.
void for_group(const ParamTable& table, int group, const std::function<void(int)>& f);

/// Factor that brings a gradient of this norm to at most `clip` (0: never clips).
double clip_scale(double norm, double clip);

}  // namespace loqal
