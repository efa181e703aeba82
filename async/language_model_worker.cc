#include "async/language_model_worker.h"

#include <chrono>

namespace loqal {

RoundData::RoundData(const Job& job, Corpus& corpus, const Options& o, int64_t T)
    : rows(uint64_t(o.batch_size * o.grad_accum)),
      loader(corpus, int(o.batch_size), int(T), uint64_t(o.seed), job.shard, int(o.local.workers)),
      end(uint64_t(job.first_step + job.steps) * rows) {
  loader.seek(uint64_t(job.first_step) * rows);
}

LanguageModelWorker::LanguageModelWorker(std::unique_ptr<Ops> ops, const ModelConfig& config,
                                         const Options& options, std::unique_ptr<Corpus> corpus,
                                         const std::atomic<bool>& stop, std::mutex* turn)
    : ops_(std::move(ops)),
      parts_(build_parts(*ops_, config, options, true)),
      corpus_(std::move(corpus)),
      config_(config),
      options_(options),
      stop_(stop),
      turn_(turn),
      delta_(size_t(options.device == "cpu" ? 0 : size())) {}

// Offsets and gaps are the table's; its first tensor is a trainable one at offset 0.
Tensor LanguageModelWorker::segment() const {
  return {parts_.model->parameter(0).as<float>(), 1, size()};
}

void LanguageModelWorker::set_weights(std::span<const float> weights) {
  LOQAL_ASSERT(int64_t(weights.size()) == size(), weights.size(), " ", size());
  ops_->upload(segment(), weights.data());
  parts_.model->refresh_compute_copy();
}

std::vector<float> LanguageModelWorker::weights() {
  std::vector<float> weights(size_t(size()), 0.0f);
  ops_->download(weights.data(), segment());
  return weights;
}

// The CPU's own memory of the weights holds their change once the round is over: an array less.
std::span<float> LanguageModelWorker::delta() {
  if (!delta_.empty()) return delta_;
  return {segment().as<float>(), size_t(size())};
}

Round LanguageModelWorker::train(const Job& job, std::span<const float> start, bool fresh) {
  using Clock = std::chrono::steady_clock;
  const auto turn = turn_ ? std::unique_lock(*turn_) : std::unique_lock<std::mutex>();
  if (fresh) parts_.optimizer->reset();
  set_weights(start);
  auto [rows, loader, end] = RoundData(job, *corpus_, options_, config_.T);
  LocalTrainer trainer(*parts_.model, *parts_.optimizer, *parts_.sink, nullptr, loader,
                       schedule_of(options_), options_.batch_size, config_.T, options_.grad_accum);
  Round round;
  while (loader.position() < end) {
    const Clock::time_point begin = Clock::now();
    trainer.set_steps_done(int64_t(loader.position() / rows));  // the shard's clock
    const std::optional<StepResult> step = trainer.step([&] { return stop_.load(); }, end);
    if (!step) return round;
    if (step->targets == 0) break;
    round.steps.push_back(*step);
    round.steps.back().seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  const std::span<float> change = delta();
  if (!delta_.empty()) ops_->download(change.data(), segment());
  for (size_t i = 0; i < change.size(); i++) change[i] = start[i] - change[i];
  return round;
}

}  // namespace loqal
