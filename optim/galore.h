// GaLore (Zhao et al. 2024, arXiv 2403.03507): dense weights whose gradients are projected onto
// their leading singular directions, so that Adam keeps its moments for R of min(out, in)
// directions only. With G [out, in] and P as in quant/subspace.h, left (right is its mirror):
//
//     R = G P^T;   N = Adam's direction for R;   W -= lr alpha N P
//
// Between two choices of P this is LoQT without quantization with s = alpha.
#pragma once
#include <functional>

#include "optim/optimizer.h"
#include "quant/refresh_schedule.h"

namespace loqal {

struct GaLoreConfig {
  AdamWConfig adam;                    ///< of everything; decay acts on the dense weights
  int64_t rank = 0;                    ///< at most the smaller side is taken
  double scale = 0.25;                 ///< alpha
  RefreshSchedule schedule;            ///< of P, by the step (0, 1, ...); 0 is always one
  bool sketch = true;                  ///< else by an exact decomposition
  std::function<bool(int)> projected;  ///< which parameters; they must be 2-D and F32
  /// Told of each new P, for the log, and of the steps since the one before; may be empty.
  std::function<void(int param, int64_t gap, const BasisReport&)> on_refresh = {};
};

class GaLore final : public Optimizer {
 public:
  GaLore(Ops& ops, const ParamAccess& params, const GaLoreConfig& config);

  void update(int group, float* grads, double scale) override;
  /// Moments of R in place of those of W, and "galore_p" F32.
  std::vector<NamedState> states(int param) const override;
  void reset() override;

 private:
  void project(int param, const Tensor& grad, const ParamRule& rule, double scale);
  void refresh(int param, const Tensor& grad, int64_t gap);
  Tensor basis(int param) const;

  GaLoreConfig config_;
  std::vector<FactorShape> shapes_;  // rank 0: not projected
  const std::vector<int64_t> refresh_steps_;
  Moments moments_;
  std::vector<int64_t> basis_at_;  // elements from the start of bases_
  Buffer bases_, projected_, direction_;
};

}  // namespace loqal
