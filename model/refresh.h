// Refresh: at scheduled steps the low-rank parts of a model's matrices are merged into the frozen
// weights, and begin anew.
//
// project (LoQT, arXiv 2405.16528): a refresh step computes the gradient at W_eff as every step,
// but of each matrix the backward pass leaves a sketch of the whole gradient where B's would be. B
// is not updated in that step; dense tensors are. Then, matrix by matrix: W = W_eff, rounded to
// what the model holds; P = s x the leading singular vectors of the gradient; B = what puts most of
// the rounding error back. Adam's step count goes on.
//
// Decoupled weight decay acts on W in every step, never on B or P. A quantized weight's scales
// decay, its codes stay. int8's own scales have 17 bits, so that they are found again; decayed ones
// have 24, and the next merge of something, rounding stochastically, moves a code of 17 or more by
// one step with a probability of up to 127 / 2^16 although nothing changed there.
//
// restart (ReLoRA, arXiv 2307.05695): after a scheduled step W = W_eff, U = 0, D random, Adam's
// moments of both 0 (or kept).
//
// It stands between the sink and the optimizer, so that a refresh of a layer happens when the
// layer's gradients are complete: with per-layer updates during the backward pass.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/low_rank.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "quant/merge.h"

namespace loqal {

struct RefreshConfig {
  enum class Kind { project, restart } kind = Kind::project;
  RefreshMoments moments = RefreshMoments::keep;
  std::vector<int64_t> steps;  ///< at which, from 0; ascending
  int64_t compensate = 0;      ///< iterations
  uint64_t seed = 1;
};

/// What happened to one matrix.
struct MergeRecord {
  std::string layer;       ///< name of the matrix
  int64_t gap = 0;         ///< steps since the refresh before; 0: it is the first
  double error = 0;        ///< |W_eff after - W_eff before| / |W_eff before|
  double update_norm = 0;  ///< |U D| before / |W_eff| before
  double retained = 1;     ///< <W after - W before, U D> / |U D|^2: how much of it the merge kept
  double energy = 0;  ///< of the gradient, captured by the new basis; of its sketch, an estimate
  /// With exact gradients: what a sketch of the same gradient would have held of it.
  std::optional<double> sketch_energy = {};
  std::string warning;  ///< why the old basis stays, or ""
};

class Refresh final : public Updater, public GradientProbe {
 public:
  Refresh(Model& model, AdamW& optimizer, const RefreshConfig& config);

  /// Before the first forward pass of step `step` (0, 1, ...), once the optimizer has begun it.
  void begin_step(int64_t step);
  void cancel_step();  ///< it was given up before a gradient was used
  void end_step();     ///< after the sink's last update

  double sum_squares(int group, float* grads) override;
  void update(int group, float* grads, double scale) override;
  Tensor directions(const LowRankParams& m, const Tensor& scratch) override;

  /// Where the float weights of a refresh at step 0 come from, all rows: what the model holds are
  /// these, rounded.
  void set_original(std::function<std::vector<float>(int weight)> original) {
    original_ = std::move(original);
  }
  std::vector<MergeRecord> take_records();

 private:
  void restart(int weight);
  void renew(const LowRankParams& m, float* grads);
  void decay(int weight);
  Tensor omega(const LowRankParams& m);
  double sketch_energy(const LowRankParams& m, const Tensor& gradient, const MergeScratch& scratch);
  UpdateReport merge(int weight, const RefreshSpace& space, const Factors& old);
  PhiloxStream stream(Purpose purpose, int weight) const;

  Model& model_;
  Ops& ops_;
  AdamW& optimizer_;
  const RefreshConfig config_;
  std::function<std::vector<float>(int)> original_;
  int64_t step_ = 0, gap_ = 0;
  bool due_ = false;
  Buffer directions_;  // Omega, and Adam's first moment of B, F32
  std::vector<MergeRecord> records_;
};

}  // namespace loqal
