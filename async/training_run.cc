#include "async/training_run.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include "async/console.h"
#include "async/local_trainer.h"
#include "async/run_lock.h"
#include "async/setup.h"
#include "async/signals.h"
#include "core/file.h"
#include "core/log.h"

namespace loqal {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Schedule schedule_of(const Options& o) {
  return {.kind = schedule_kind(o.lr_schedule),
          .lr = o.lr,
          .min_lr = o.min_lr,
          .warmup = o.warmup,
          .steps = o.steps};
}

class TrainingRun {
 public:
  explicit TrainingRun(Options options) : o_(std::move(options)) {}
  int run();

 private:
  void prepare();
  void restore();
  void open_log();
  void announce();
  void evaluate();
  void save(bool final);
  void log_step(const StepResult& result, double seconds);
  int finish(const std::string& reason, int exit_code);
  void end_after(const Error& error);
  double time() const { return time_before_ + seconds_since(start_); }
  void record(const Json& line);
  bool due(int64_t every) const { return every > 0 && (step_ % every == 0 || step_ == o_.steps); }
  bool evaluation_due() const { return eval_loader_ && due(o_.eval_every) && !evaluated_; }

  Options o_;
  std::string checkpoint_;  // that this run resumes from, or ""
  std::string origin_;      // checkpoint_, or --init's directory, or ""
  std::string notice_;
  std::string device_choice_;  // why it is this device, or ""
  Json saved_;
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Corpus> train_corpus_, val_corpus_;
  std::unique_ptr<TrainLoader> loader_;
  std::unique_ptr<EvalLoader> eval_loader_;
  std::unique_ptr<Ops> ops_;
  Parts parts_;
  std::unique_ptr<LocalTrainer> trainer_;
  std::unique_ptr<JsonlLog> log_;
  std::unique_ptr<Console> console_;
  int64_t step_ = 0;        // optimizer steps done
  int64_t tokens_ = 0;      // targets seen
  bool evaluated_ = false;  // at step_
  TokenizerFiles tokenizer_files_;
  std::string last_saved_;      // by this session
  std::vector<Json> unlogged_;  // records that a full disk keeps out of the log for now
  std::unique_ptr<RunLock> lock_;
  double average_seconds_ = 0;
  double peak_flops_ = 0;
  double time_before_ = 0;  // seconds of the sessions that this one resumes
  Clock::time_point start_ = Clock::now();
};

// Everything that can be wrong is checked here, before memory is allocated.
void TrainingRun::prepare() {
  checkpoint_ = resolve_resume(o_);
  if (!checkpoint_.empty()) {
    saved_ = read_checkpoint_state(checkpoint_);
    const std::string where = checkpoint_ + "/state.json";
    take_saved_options(o_, get<Json>(saved_, "options", where), where, notice_);
  }
  complete_options(o_);
  origin_ = !checkpoint_.empty() ? checkpoint_ : o_.init == "random" ? "" : o_.init;
  tokenizer_ = open_tokenizer(o_, origin_);
  const int vocab = data_vocabulary(o_.train_data, tokenizer_.get());
  Options sizes = o_;
  if (!checkpoint_.empty()) sizes.init = checkpoint_;  // what --init named once may be gone
  config_ = resolve_model(sizes, vocab);
  sizes.init = o_.init;
  o_ = sizes;
  resolve_batch(o_, config_);
  check_export(o_, config_);
  const std::optional<TokenizerInfo> info = info_of(tokenizer_.get());
  const auto open = [&](const std::vector<std::string>& patterns, const char* role) {
    return std::make_unique<Corpus>(patterns, role, int(config_.V), info ? &*info : nullptr);
  };
  train_corpus_ = open(o_.train_data, "training");
  loader_ = std::make_unique<TrainLoader>(*train_corpus_, int(o_.batch_size), int(config_.T),
                                          uint64_t(o_.seed));
  if (!o_.val_data.empty()) {
    val_corpus_ = open(o_.val_data, "validation");
    eval_loader_ = std::make_unique<EvalLoader>(*val_corpus_, int(o_.batch_size), int(config_.T),
                                                o_.eval_tokens);
  }
  if (val_corpus_) train_corpus_->check_same_tokenizer(*val_corpus_);
  tokenizer_files_ = {tokenizer_files(tokenizer_.get(), origin_), train_corpus_->start_token(), {}};
  if (train_corpus_->eos() >= 0) tokenizer_files_.eos = {train_corpus_->eos()};
  const bool own =
      checkpoint_.empty()
          ? !o_.resume.empty()
          : std::filesystem::path(real_path(checkpoint_)).parent_path() == real_path(o_.out);
  if (!own && (JsonlLog::exists(o_.out + "/log.jsonl") || !list_checkpoints(o_.out).empty()))
    fail(cat(o_.out, ": this directory already holds a run"),
         cat("continue it with --resume ", o_.out, ", or choose another --out"));
  create_directories(o_.out);
  lock_ = std::make_unique<RunLock>(o_.out);
  device_choice_ = choose_device(o_, config_, true);
  ops_ = make_device(o_, false);
  check_memory(config_, o_, true);
}

void TrainingRun::restore() {
  if (checkpoint_.empty()) {
    if (o_.init == "random") parts_.model->init_random(uint64_t(o_.seed));
    else load_weights(o_.init, *parts_.model);
    return;
  }
  const std::string where = checkpoint_ + "/state.json";
  const Json corpus = get<Json>(saved_, "corpus", where);
  if (get<std::string>(corpus, "fingerprint", where) != train_corpus_->fingerprint())
    fail(cat("the training data is not that of ", checkpoint_, ": it had ",
             get<int64_t>(corpus, "files", where), " shards with ",
             get<int64_t>(corpus, "tokens", where), " tokens, found ",
             train_corpus_->files().size(), " with ", train_corpus_->tokens()),
         "give the same --train-data, or start a new run with --init");
  load_checkpoint(checkpoint_, saved_, *parts_.model, *parts_.optimizer);
  step_ = get<int64_t>(saved_, "step", where);
  tokens_ = get<int64_t>(saved_, "tokens", where);
  evaluated_ = get<bool>(saved_, "evaluated", where);
  loader_->seek(get<uint64_t>(saved_, "position", where));
  trainer_->set_steps_done(step_);
}

void TrainingRun::open_log() {
  const std::string path = o_.out + "/log.jsonl";
  if (o_.resume.empty()) {
    log_ = std::make_unique<JsonlLog>(path);
  } else {
    // --resume auto after a crash before the first checkpoint: all that was logged moves aside.
    const int64_t from = checkpoint_.empty() ? -1 : step_;
    time_before_ = JsonlLog::time_at(path, from);
    log_ = std::make_unique<JsonlLog>(path, from);
    set_aside_checkpoints_after(o_.out, step_);
  }
  start_ = Clock::now();
}

void TrainingRun::announce() {
  const int64_t per_step = o_.batch_size * config_.T * o_.grad_accum;
  const ParamTable& table = parts_.model->table();
  Json run = {{"kind", "run"},
              {"version", "0.1"},
              {"device", ops_->description()},
              {"precision", o_.precision}};
  if (!checkpoint_.empty()) run["resumed_step"] = step_, run["resumed_from"] = checkpoint_;
  run["parameters"] = parts_.model->parameter_count();
  run["tokens_per_step"] = per_step;
  run["initial_loss"] = std::log(double(config_.V));
  run["peak_flops"] = peak_flops_;
  run["options"] = options_to_json(o_, true);
  for (const Corpus* corpus : {train_corpus_.get(), val_corpus_.get()}) {
    if (!corpus) continue;
    Json files;
    for (const CorpusFile& f : corpus->files())
      files.push_back({{"path", f.path}, {"tokens", f.tokens}});
    run[corpus->role()] = files;
  }
  log_->write(run);
  for (const auto& [category, bytes] : ops_->memory_table())
    if (bytes) log_->write({{"kind", "memory"}, {"category", category}, {"bytes", bytes}});

  std::cout << "device      " << ops_->description() << ", " << o_.precision << ", "
            << format("%.0f GFLOP/s measured", peak_flops_ * 1e-9)
            << (device_choice_.empty() ? "" : " (" + device_choice_ + ")") << "\n";
  print_model(std::cout, config_, table);
  const int T = int(config_.T);
  std::cout << "data        " << train_corpus_->tokens() << " tokens in "
            << train_corpus_->files().size()
            << (train_corpus_->files().size() == 1 ? " shard, " : " shards, ")
            << loader_->rows_per_epoch() << " windows of " << T << ", " << train_corpus_->dropped(T)
            << " tokens are no target";
  if (val_corpus_) std::cout << "; evaluation on " << eval_loader_->tokens() << " tokens";
  std::cout << "\nrun         " << o_.steps << " steps x " << per_step << " tokens (batch "
            << o_.batch_size << " x " << config_.T
            << (o_.grad_accum > 1 ? cat(" x ", o_.grad_accum, " accumulated") : "")
            << ") = " << short_number(double(o_.steps) * double(per_step))
            << " tokens; a uniform guess has loss " << format("%.3f", std::log(double(config_.V)))
            << "\noptions     " << given_options(o_) << "\nlog         " << log_->path() << "\n";
  if (!checkpoint_.empty())
    std::cout << "resumed     " << checkpoint_ << ", step " << step_ << ", next learning rate "
              << schedule_of(o_).at(step_) << "\n";
  if (!notice_.empty()) std::cout << "notice      " << notice_ << "\n";
  std::cout << std::flush;
}

// A disk that is full for a while costs no training: records wait in memory and are written later.
void TrainingRun::record(const Json& line) {
  const bool waiting = !unlogged_.empty();
  unlogged_.push_back(line);
  try {
    while (!unlogged_.empty()) {
      log_->write(unlogged_.front());
      unlogged_.erase(unlogged_.begin());
    }
  } catch (const Error& e) {
    if (!waiting)
      console_->line(cat("warning: ", e.what(), "; training goes on, the log is written later"));
  }
}

void TrainingRun::evaluate() {
  const std::optional<MeanLoss> mean = mean_loss(*parts_.model, *eval_loader_, o_.batch_size,
                                                 config_.T, [] { return stop_signal() != 0; });
  if (!mean) return;  // a signal: the resumed run evaluates this step again
  const double loss = mean->loss;
  if (!std::isfinite(loss))
    fail_nonfinite("the validation loss is not finite; first in " +
                   parts_.model->first_nonfinite());
  record({{"kind", "eval"},
          {"step", step_},
          {"loss", number(loss)},
          {"ppl", number(std::exp(loss))},
          {"tokens", mean->targets},
          {"weights", "effective"},
          {"time", time()}});
  console_->line(format("eval %lld  loss %.4f  ppl %.2f", static_cast<long long>(step_), loss,
                        std::exp(loss)));
  evaluated_ = true;
}

// A save that fails in the middle of a run must not end it: the older checkpoint is intact, the
// disk may have room again at the next one. The last save has no next one.
void TrainingRun::save(bool final) {
  const std::string path = checkpoint_name(o_.out, step_);
  Json state = {{"step", step_},
                {"tokens", tokens_},
                {"position", loader_->position()},
                {"evaluated", evaluated_},
                {"corpus",
                 {{"fingerprint", train_corpus_->fingerprint()},
                  {"files", train_corpus_->files().size()},
                  {"tokens", train_corpus_->tokens()}}},
                {"options", options_to_json(o_, false)}};
  try {
    save_checkpoint(path, *parts_.model, *parts_.optimizer, std::move(state), tokenizer_files_);
  } catch (const Error& e) {
    if (final || e.exit_code == Exit::nonfinite) throw;
    console_->line(cat("warning: step ", step_, " was not saved: ", e.what(),
                       "; training goes on, next try at step ", step_ + o_.save_every));
    return;
  }
  last_saved_ = path;
  record({{"kind", "save"}, {"step", step_}, {"path", path}, {"time", time()}});
  try {
    prune_checkpoints(o_.out, o_.keep);
  } catch (const Error& e) {
    console_->line(cat("warning: old checkpoints stay: ", e.what()));
  }
}

void TrainingRun::log_step(const StepResult& r, double seconds) {
  const double rate = double(o_.batch_size * config_.T * o_.grad_accum) / seconds;
  const double mfu = rate * flops_per_token(config_) / peak_flops_;
  record({{"kind", "train"},
          {"step", step_},
          {"loss", number(r.loss)},
          {"lr", r.lr},
          {"grad_norm", number(r.grad_norm)},
          {"tokens", tokens_},
          {"tokens_per_s", rate},
          {"step_ms", seconds * 1e3},
          {"mfu", mfu},
          {"time", time()}});
  average_seconds_ = average_seconds_ == 0 ? seconds : 0.9 * average_seconds_ + 0.1 * seconds;
  console_->step(step_,
                 format("loss %.4f  lr %.2e  norm %.3f  %s tok/s  %.0f ms  mfu %.0f%%", r.loss,
                        r.lr, r.grad_norm, short_number(rate).c_str(), seconds * 1e3, mfu * 100),
                 average_seconds_);
  if (r.skipped)
    console_->line(cat("notice: ", r.skipped, " batches without a target were passed over"));
}

int TrainingRun::finish(const std::string& reason, int exit_code) {
  record({{"kind", "memory"}, {"category", "measured peak"},
          {"bytes", o_.device == "cuda" ? ops_->peak_bytes() : peak_rss()}});
  record({{"kind", "end"}, {"step", step_}, {"reason", reason}, {"time", time()}});
  if (!unlogged_.empty())
    fail(cat(log_->path(), ": the last ", unlogged_.size(), " records could not be written"),
         "the checkpoints are complete; free some space on the disk");
  console_->line(cat(reason, "; log ", log_->path(),
                     last_saved_.empty() ? "" : "; checkpoint " + last_saved_));
  return exit_code;
}

// An error from outside, such as a shard that turns out damaged: the state is that of the last
// whole step. What can be saved is saved; the error itself is reported by the caller.
void TrainingRun::end_after(const Error& error) {
  try {
    if (last_saved_ != checkpoint_name(o_.out, step_)) save(true);
    finish(cat(step_ == o_.steps ? "done, but: " : "stopped: ", error.what()),
           int(error.exit_code));
  } catch (const Error& e) {
    console_->line(cat("warning: ", e.what()));
  }
}

int TrainingRun::run() {
  watch_signals();
  prepare();
  if (!saved_.is_null() && get<int64_t>(saved_, "step", checkpoint_) >= o_.steps &&
      (get<bool>(saved_, "evaluated", checkpoint_) || !eval_loader_ || o_.eval_every == 0)) {
    std::cout << checkpoint_ << ": the run is finished at step " << o_.steps
              << "; a larger --steps continues it\n";
    if (!o_.is_given("--export")) return 0;
    for (const char* name : {"--train-data", "--steps", "--precision", "--init"})
      o_.given.erase(name);  // of the training that is over
    return export_only(o_);
  }
  peak_flops_ = ops_->peak_flops(o_.precision == "bf16" ? DType::BF16 : DType::F32);
  parts_ = build_parts(*ops_, config_, o_, true);
  trainer_ =
      std::make_unique<LocalTrainer>(*parts_.model, *parts_.optimizer, *parts_.sink, *loader_,
                                     schedule_of(o_), o_.batch_size, config_.T, o_.grad_accum);
  console_ = std::make_unique<Console>(o_.steps);
  restore();
  open_log();
  announce();
  int64_t attempted = step_;
  try {
    if (evaluation_due()) {
      evaluate();
      if (evaluated_ && step_ == o_.steps) save(true);  // a signal had come before this evaluation
    }
    while (step_ < o_.steps && !stop_signal()) {
      const Clock::time_point begin = Clock::now();
      attempted = step_ + 1;
      const std::optional<StepResult> result = trainer_->step([] { return stop_signal() != 0; });
      if (!result) break;
      step_ = trainer_->steps_done();
      tokens_ += result->targets;
      evaluated_ = false;
      log_step(*result, seconds_since(begin));
      if (evaluation_due()) evaluate();
      if (due(o_.save_every)) save(step_ == o_.steps);
    }
    if (o_.is_given("--export") &&
        export_model(o_.export_to, *parts_.model, tokenizer_files_, [] { return stop_signal() != 0; }))
      console_->line("exported to " + o_.export_to);
  } catch (const Error& e) {
    if (e.exit_code != Exit::nonfinite) {
      end_after(e);
      throw;
    }
    const std::string last = last_saved_.empty() ? checkpoint_ : last_saved_;
    finish(cat("stopped: ", e.what()), 3);
    throw Error(Exit::nonfinite, cat("step ", attempted, ": ", e.what()),
                (last.empty() ? "no checkpoint was written before it"
                              : "the last good checkpoint is " + last) +
                    "; a lower --lr, a longer --warmup or --precision fp32 may help");
  }
  if (const int signal = stop_signal()) {
    if (last_saved_ != checkpoint_name(o_.out, step_)) save(true);
    const char* name = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
    return finish(cat("interrupted by ", name), signal_exit_code(signal));
  }
  return finish("done", 0);
}

}  // namespace

int train(Options options) { return TrainingRun(std::move(options)).run(); }

}  // namespace loqal
