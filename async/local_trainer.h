// LocalTrainer: one worker that trains one model on its share of the data, step by step. Plain
// training is exactly one of these; a round of a Local-SGD worker is some steps of one.
#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "async/trainer.h"
#include "data/loader.h"
#include "model/model.h"
#include "model/refresh.h"
#include "optim/grad_sinks.h"
#include "optim/schedule.h"

namespace loqal {

class LocalTrainer {
 public:
  /// refresh: null, or what merges and renews the low-rank parts of `model`.
  LocalTrainer(Model& model, Optimizer& optimizer, StepSink& sink, Refresh* refresh,
               TrainLoader& loader, const Schedule& schedule, int64_t B, int64_t T,
               int64_t grad_accum);

  /// One optimizer step over grad_accum micro-batches, weighted by their numbers of targets. A step
  /// whose targets are all ignored is no step: the next batch is taken instead, but none behind the
  /// loader's position `end`; then the result has no targets and nothing has changed. If
  /// `interrupted` becomes true the step is abandoned, nothing has changed, and nullopt is
  /// returned. A non-finite loss or gradient throws Exit::nonfinite, naming the tensor, before
  /// parameters are updated (per-layer updates: before those of the layer and all below it are).
  std::optional<StepResult> step(const std::function<bool()>& interrupted,
                                 uint64_t end = std::numeric_limits<uint64_t>::max());

  /// An exception has left a step half done: model and optimizer are those of no step.
  bool torn() const { return torn_; }
  int64_t steps_done() const { return step_; }
  void set_steps_done(int64_t step) { step_ = step; }

 private:
  int64_t load_batches();

  Model& model_;
  Optimizer& optimizer_;
  StepSink& sink_;
  Refresh* refresh_;
  TrainLoader& loader_;
  Schedule schedule_;
  int64_t B_, T_, grad_accum_;
  int64_t step_ = 0;
  bool torn_ = false;
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
