// Trainer: one worker of Local-SGD, as the engine sees it. Generic, so that tests plug in small
// tasks; the real one is LanguageModelWorker (async/language_model_worker.h).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "async/scheduler.h"

namespace loqal {

struct StepResult {
  double loss = 0;  ///< mean nll over the step's targets, before the update, nats
  double lr = 0;
  double grad_norm = 0;  ///< before clipping
  int64_t targets = 0;   ///< predicted tokens
  int64_t skipped = 0;   ///< batches without a single target that were passed over before this one
  double seconds = 0;    ///< of wall clock, set by who measures it; 0: unknown
};

/// What a worker computed for a job.
struct Round {
  std::vector<StepResult> steps;  ///< fewer than job.steps if batches held no target
  std::string failure;            ///< a loss or gradient that is not finite, or ""
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  /// Trains from the weights `start`, which stay as they are; afterwards delta() is start - end.
  /// fresh: with a new inner optimizer. Runs on any thread, one round of a worker at a time. An
  /// Error of Exit::nonfinite is the round's failure; any other ends the run.
  virtual Round train(const Job& job, std::span<const float> start, bool fresh) = 0;
  /// Of the last round, until the next one or whatever else uses the worker's model.
  virtual std::span<float> delta() = 0;
};

}  // namespace loqal
