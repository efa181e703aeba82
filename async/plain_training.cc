#include <chrono>
#include <utility>

#include "async/signals.h"
#include "async/work.h"

namespace loqal {

namespace {
constexpr int kZeroNorms = 10;  // so many in a row are worth a warning
}

PlainTraining::PlainTraining(const WorkEnvironment& e, Ops& ops, TrainLoader& loader)
    : e_(e),
      ops_(ops),
      loader_(loader),
      parts_(build_parts(ops, e.config, e.options, true)),
      trainer_(*parts_.model, *parts_.optimizer, *parts_.sink, parts_.refresh.get(), loader,
               schedule_of(e.options), e.options.batch_size, e.config.T, e.options.grad_accum) {}

void PlainTraining::begin() {
  if (!parts_.refresh) return;
  const Options& o = e_.options;
  parts_.refresh->set_original(
      [model = parts_.model.get(), seed = uint64_t(o.seed), init = o.init](int weight) {
        return init == "random" ? model->random_values(weight, seed)
                                : StoredWeights(init).read(*model, weight);
      });
}

bool PlainTraining::advance() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::optional<StepResult> result = trainer_.step([] { return stop_signal() != 0; });
  if (!result) return false;
  tokens_ += result->targets;
  result->seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (parts_.refresh)
    for (const MergeRecord& r : parts_.refresh->take_records()) log(r);
  if (parts_.records)
    for (const MergeRecord& r : std::exchange(*parts_.records, {})) log(r);
  log(*result);
  return true;
}

void PlainTraining::log(const StepResult& r) {
  const double rate =
      double(e_.options.batch_size * e_.config.T * e_.options.grad_accum) / r.seconds;
  const double mfu = rate * flops_per_token(e_.config) / e_.peak_flops;
  e_.record({{"kind", "train"},
             {"step", step()},
             {"loss", number(r.loss)},
             {"lr", r.lr},
             {"grad_norm", number(r.grad_norm)},
             {"tokens", tokens_},
             {"tokens_per_s", rate},
             {"step_ms", r.seconds * 1e3},
             {"mfu", mfu}});
  average_seconds_ = average_seconds_ == 0 ? r.seconds : 0.9 * average_seconds_ + 0.1 * r.seconds;
  e_.console->step(
      step(),
      format("loss %.4f  lr %.2e  norm %.3f  %s tok/s  %.0f ms  mfu %.0f%%", r.loss, r.lr,
             r.grad_norm, short_number(rate).c_str(), r.seconds * 1e3, mfu * 100),
      average_seconds_);
  if (r.skipped)
    e_.console->line(cat("notice: ", r.skipped, " batches without a target were passed over"));
  zero_norms_ = r.grad_norm == 0 ? zero_norms_ + 1 : 0;
  if (zero_norms_ == kZeroNorms)
    e_.console->line(
        cat("warning: the gradient has been zero for ", kZeroNorms, " steps: nothing is learned"));
}

void PlainTraining::log(const MergeRecord& r) {
  Json record = {{"kind", "merge"},
                 {"step", step()},
                 {"layer", r.layer},
                 {"gap", r.gap},
                 {"error", number(r.error)},
                 {"update_norm", number(r.update_norm)},
                 {"retained", number(r.retained)},
                 {"energy", number(r.energy)}};
  if (r.sketch_energy) record["sketch_energy"] = number(*r.sketch_energy);
  if (!r.warning.empty()) {
    record["warning"] = r.warning;
    e_.console->line(cat("warning: ", r.layer, ": ", r.warning));
  }
  e_.record(std::move(record));
}

void PlainTraining::add_state(Json& state) {
  state["position"] = loader_.position();
  state["adam_step"] = parts_.optimizer->step_count();
}

void PlainTraining::restore(const Json& state, const std::string& where) {
  tokens_ = get<int64_t>(state, "tokens", where);
  loader_.seek(get<uint64_t>(state, "position", where));
  trainer_.set_steps_done(get<int64_t>(state, "step", where));
  parts_.optimizer->set_step_count(get<int64_t>(state, "adam_step", where));
}

std::vector<StateTensor> PlainTraining::tensors() {
  return optimizer_tensors(*parts_.model, *parts_.optimizer);
}

std::string PlainTraining::next_rate() const {
  return cat("next learning rate ", schedule_of(e_.options).at(step()));
}

}  // namespace loqal
