// LocalTrainer: one worker that trains one model on its share of the data, step by step. Plain
// training is exactly one of these; Local-SGD will run several.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "data/loader.h"
#include "model/model.h"
#include "optim/grad_sinks.h"
#include "optim/schedule.h"

namespace loqal {

struct StepResult {
  double loss = 0;  ///< mean nll over the step's targets, before the update, nats
  double lr = 0;
  double grad_norm = 0;  ///< before clipping
  int64_t targets = 0;   ///< predicted tokens
  int64_t skipped = 0;   ///< batches without a single target that were passed over before this one
};

class LocalTrainer {
 public:
  LocalTrainer(Model& model, AdamW& optimizer, StepSink& sink, TrainLoader& loader,
               const Schedule& schedule, int64_t B, int64_t T, int64_t grad_accum);

  /// One optimizer step over grad_accum micro-batches, weighted by their numbers of targets. A step
  /// whose targets are all ignored is no step: the next batch is taken instead. If `interrupted`
  /// becomes true the step is abandoned, nothing has changed, and nullopt is returned. A non-finite
  /// loss or gradient throws Exit::nonfinite, naming the tensor, before parameters are updated
  /// (per-layer updates: before those of the layer and all below it are).
  std::optional<StepResult> step(const std::function<bool()>& interrupted);

  int64_t steps_done() const { return step_; }
  void set_steps_done(int64_t step) { step_ = step; }

 private:
  int64_t load_batches();

  Model& model_;
  AdamW& optimizer_;
  StepSink& sink_;
  TrainLoader& loader_;
  Schedule schedule_;
  int64_t B_, T_, grad_accum_;
  int64_t step_ = 0;
  std::vector<int32_t> tokens_, targets_;  // [grad_accum, B, T]
};

struct MeanLoss {
  double loss;  ///< sum of nll over number of targets, nats
  int64_t targets;
};

/// Over all batches of the loader; Error if there are no targets; nullopt if `interrupted` became
/// true.
std::optional<MeanLoss> mean_loss(Model& model, EvalLoader& loader, int64_t B, int64_t T,
                                  const std::function<bool()>& interrupted);

}  // namespace loqal
