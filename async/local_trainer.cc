#include "async/local_trainer.h"

#include <cmath>

#include "core/error.h"

namespace loqal {

LocalTrainer::LocalTrainer(Model& model, Optimizer& optimizer, StepSink& sink, Refresh* refresh,
                           TrainLoader& loader, const Schedule& schedule, int64_t B, int64_t T,
                           int64_t grad_accum)
    : model_(model),
      optimizer_(optimizer),
      sink_(sink),
      refresh_(refresh),
      loader_(loader),
      schedule_(schedule),
      B_(B),
      T_(T),
      grad_accum_(grad_accum),
      tokens_(size_t(grad_accum * B * T)),
      targets_(tokens_.size()) {}

// All micro-batches at once: the number of targets must be known before the first backward pass.
int64_t LocalTrainer::load_batches() {
  int64_t targets = 0;
  for (int64_t a = 0; a < grad_accum_; a++)
    targets += loader_.next(tokens_.data() + a * B_ * T_, targets_.data() + a * B_ * T_);
  return targets;
}

std::optional<StepResult> LocalTrainer::step(const std::function<bool()>& interrupted,
                                             uint64_t end) {
  const uint64_t position = loader_.position();
  StepResult result;
  const int64_t most_skips = int64_t(loader_.rows_per_epoch()) / (B_ * grad_accum_) + 1;
  try {
    while ((result.targets = load_batches()) == 0) {
      if (loader_.position() >= end) return result;
      if (++result.skipped > most_skips)
        fail("the training data holds no targets: every one is padding");
    }
  } catch (...) {
    loader_.seek(position);  // so that the caller can save a state that a repaired shard continues
    throw;
  }

  result.lr = schedule_.at(step_);
  const int64_t adam_steps = optimizer_.step_count();
  optimizer_.begin_step(result.lr);
  if (refresh_) refresh_->begin_step(step_);
  sink_.begin_step();
  double nll = 0;
  for (int64_t a = 0; a < grad_accum_; a++) {
    if (interrupted()) {
      loader_.seek(position);
      optimizer_.set_step_count(adam_steps);
      if (refresh_) refresh_->cancel_step();
      torn_ = false;
      return std::nullopt;
    }
    torn_ = true;  // from here on groups may be updated one by one
    sink_.begin_micro_batch(int(a));
    nll += model_.forward_backward(tokens_.data() + a * B_ * T_, targets_.data() + a * B_ * T_, B_,
                                   T_, float(1.0 / double(result.targets)), sink_);
    if (!std::isfinite(nll)) {
      const std::string where = model_.first_nonfinite();
      fail_nonfinite("the loss is not finite" + (where.empty() ? "" : "; first in " + where));
    }
  }
  result.loss = nll / double(result.targets);
  result.grad_norm = sink_.finish_step().grad_norm;
  if (refresh_) refresh_->end_step();
  torn_ = false;
  step_++;
  return result;
}

std::optional<MeanLoss> mean_loss(Model& model, EvalLoader& loader, int64_t B, int64_t T,
                                  const std::function<bool()>& interrupted) {
  std::vector<int32_t> tokens(size_t(B * T)), targets(tokens.size());
  double sum = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < loader.batches(); i++) {
    if (interrupted()) return {};
    count += loader.batch(i, tokens.data(), targets.data());
    sum += model.forward(tokens.data(), targets.data(), B, T);
  }
  if (count == 0) fail("the validation data holds no targets: every one is padding");
  return MeanLoss{sum / double(count), count};
}

}  // namespace loqal
