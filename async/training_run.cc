#include "async/training_run.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>

#include "async/local_sgd.h"
#include "async/run_lock.h"
#include "async/run_log.h"
#include "async/signals.h"
#include "async/work.h"
#include "core/file.h"
#include "core/log.h"

namespace loqal {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMergeCosts = 0.01;  // nats, 1 % of perplexity: more is worth a warning

class TrainingRun {
 public:
  explicit TrainingRun(Options options) : o_(std::move(options)) {}
  int run();

 private:
  void prepare();
  void restore();
  void open_log();
  void announce();
  std::optional<double> evaluate(const char* weights = "effective");
  void evaluate_merged();
  bool merged_evaluation_missing() const;
  void save(bool final);
  int finish(const std::string& reason, int exit_code);
  void save_the_end();  // unless it is saved, or nothing is left to resume from
  void attempt(const std::function<void()>& what);
  void end_after(const Error& error);
  void record(Json line) {
    line["time"] = time_before_ + std::chrono::duration<double>(Clock::now() - start_).count();
    log_->record(line);
  }
  int64_t step() const { return work_->step(); }
  bool done() const { return step() >= o_.steps; }
  /// Every so many steps, when their number is reached or passed, and at the end.
  bool due(int64_t every, int64_t before) const {
    return every > 0 && (step() == 0 || step() / every > before / every || done());
  }
  bool evaluation_due(int64_t before) const {
    return eval_loader_ && due(o_.eval_every, before) && !evaluated_;
  }
  std::unique_ptr<Corpus> open_corpus(const std::vector<std::string>& patterns, const char* role);
  void make_work();
  void train_until_the_end();

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
  std::unique_ptr<Console> console_;
  std::unique_ptr<Work> work_;
  std::unique_ptr<RunLog> log_;
  int64_t attempted_ = 0;   // step of which an error would be
  bool evaluated_ = false;  // at this step
  TokenizerFiles tokenizer_files_;
  std::string last_saved_;  // by this session
  bool merged_ = false;     // the factors are gone: evaluate_merged()
  std::unique_ptr<RunLock> lock_;
  double peak_flops_ = 0;
  double time_before_ = 0;  // seconds of the sessions that this one resumes
  Clock::time_point start_ = Clock::now();
};

std::unique_ptr<Corpus> TrainingRun::open_corpus(const std::vector<std::string>& patterns,
                                                 const char* role) {
  const std::optional<TokenizerInfo> info = info_of(tokenizer_.get());
  return std::make_unique<Corpus>(patterns, role, int(config_.V), info ? &*info : nullptr);
}

// Everything that can be wrong is checked here, before memory is allocated.
void TrainingRun::prepare() {
  checkpoint_ = resolve_resume(o_);
  if (!checkpoint_.empty()) {
    saved_ = read_checkpoint_state(checkpoint_);
    const std::string where = checkpoint_ + "/state.json";
    take_saved_options(o_, get<Json>(saved_, "options", where), where, notice_);
    take_saved_devices(o_, saved_, where);
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
  train_corpus_ = open_corpus(o_.train_data, "training");
  loader_ = std::make_unique<TrainLoader>(*train_corpus_, int(o_.batch_size), int(config_.T),
                                          uint64_t(o_.seed), 0, int(o_.local.workers));
  if (!o_.val_data.empty()) {
    val_corpus_ = open_corpus(o_.val_data, "validation");
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

void TrainingRun::make_work() {
  const WorkEnvironment environment{o_, config_, peak_flops_,
                                    [this](const Json& line) { record(line); }, console_.get()};
  if (o_.local.on())
    work_ = std::make_unique<LocalSgd>(environment,
                                       [this] { return open_corpus(o_.train_data, "training"); });
  else work_ = std::make_unique<PlainTraining>(environment, *ops_, *loader_);
}

void TrainingRun::restore() {
  if (checkpoint_.empty()) {
    if (o_.init == "random") work_->model().init_random(uint64_t(o_.seed));
    else {
      load_weights(o_.init, work_->model());
      work_->model().init_factors(uint64_t(o_.seed));
      work_->model().refresh_compute_copy();
    }
    work_->begin();
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
  load_model(checkpoint_, work_->model());
  work_->begin();
  work_->restore(saved_, where);
  load_state_tensors(checkpoint_, work_->tensors());
  evaluated_ = get<bool>(saved_, "evaluated", where);
}

void TrainingRun::open_log() {
  const std::string path = o_.out + "/log.jsonl";
  if (o_.resume.empty()) {
    log_ = std::make_unique<RunLog>(*console_, path, std::nullopt);
  } else {
    // --resume auto after a crash before the first checkpoint: all that was logged moves aside.
    const int64_t from = checkpoint_.empty() ? -1 : step();
    time_before_ = JsonlLog::time_at(path, from);
    log_ = std::make_unique<RunLog>(*console_, path, from);
    set_aside_checkpoints_after(o_.out, step());
  }
  start_ = Clock::now();
}

void TrainingRun::announce() {
  const Model& model = work_->model();
  Json run = {{"kind", "run"},
              {"version", "0.1"},
              {"device", ops_->description()},
              {"precision", o_.precision}};
  if (!checkpoint_.empty()) run["resumed_step"] = step(), run["resumed_from"] = checkpoint_;
  run["parameters"] = model.parameter_count();
  run["tokens_per_step"] = o_.batch_size * config_.T * o_.grad_accum;
  run["initial_loss"] = std::log(double(config_.V));
  run["peak_flops"] = peak_flops_;
  run["options"] = options_to_json(o_, true);
  for (const Corpus* corpus : {train_corpus_.get(), val_corpus_.get()})
    if (corpus) run[corpus->role()] = shards_of(*corpus);
  log_->write(run);
  for (const auto& [category, bytes] : work_->memory_table())
    if (bytes) log_->write({{"kind", "memory"}, {"category", category}, {"bytes", bytes}});

  std::cout << "device      " << ops_->description() << ", " << o_.precision << ", "
            << format("%.0f GFLOP/s measured", peak_flops_ * 1e-9)
            << (device_choice_.empty() ? "" : " (" + device_choice_ + ")") << "\n";
  print_model(std::cout, config_, model.table());
  print_method(std::cout, o_, config_);
  print_data(std::cout, o_, config_, *train_corpus_, *loader_, eval_loader_.get());
  std::cout << "options     " << given_options(o_) << "\nlog         " << log_->path() << "\n";
  if (!checkpoint_.empty())
    std::cout << "resumed     " << checkpoint_ << ", step " << step() << ", " << work_->next_rate()
              << "\n";
  if (!notice_.empty()) std::cout << "notice      " << notice_ << "\n";
  std::cout << std::flush;
}

// weights: what kind of them the model holds. Their loss; none after a signal.
std::optional<double> TrainingRun::evaluate(const char* weights) {
  const std::optional<MeanLoss> mean = mean_loss(work_->model(), *eval_loader_, o_.batch_size,
                                                 config_.T, [] { return stop_signal() != 0; });
  if (!mean) return {};  // a signal: the resumed run evaluates this step again
  const double loss = mean->loss;
  if (!std::isfinite(loss))
    fail_nonfinite("the validation loss is not finite; first in " +
                   work_->model().first_nonfinite());
  record({{"kind", "eval"},
          {"step", step()},
          {"loss", number(loss)},
          {"ppl", number(std::exp(loss))},
          {"tokens", mean->targets},
          {"weights", weights}});
  console_->line(cat("eval ", step(), format("  loss %.4f  ppl %.2f", loss, std::exp(loss)),
                     o_.method.quantized() ? cat("  ", weights) : ""));
  evaluated_ = true;
  return loss;
}

// A signal came during the evaluation after the last save.
bool TrainingRun::merged_evaluation_missing() const {
  const std::string log = o_.out + "/log.jsonl";
  if (!o_.method.quantized() || !JsonlLog::exists(log)) return false;
  const Json merged = JsonlLog::last(log, "eval", "weights", "merged");
  return merged.is_null() || merged.value("step", int64_t(0)) != o_.steps;
}

// What a deployment in int8 or NF4 would be: the low-rank parts rounded into the weights. The run
// is over and saved; nothing uses the factors any more.
void TrainingRun::evaluate_merged() {
  if (!o_.method.quantized() || !eval_loader_ || o_.eval_every == 0) return;
  merged_ = true;
  work_->model().merge_factors();
  const Json effective = JsonlLog::last(log_->path(), "eval", "weights", "effective");
  const std::optional<double> merged = evaluate("merged");
  if (!merged || effective.is_null() || effective["step"] != step()) return;
  const double rise = *merged - effective["loss"].get<double>();
  if (rise > kMergeCosts)
    console_->line(cat("warning: with its factors rounded into the weights the model's loss is ",
                       format("%.3f", rise), " higher; the export has them in full precision"));
}

// A save that fails in the middle of a run must not end it: the older checkpoint is intact, the
// disk may have room again at the next one. The last save has no next one.
void TrainingRun::save(bool final) {
  const std::string path = checkpoint_name(o_.out, step());
  work_->settle();
  Json state = {{"step", step()},
                {"tokens", work_->tokens()},
                {"evaluated", evaluated_},
                {"corpus",
                 {{"fingerprint", train_corpus_->fingerprint()},
                  {"files", train_corpus_->files().size()},
                  {"tokens", train_corpus_->tokens()}}},
                {"options", options_to_json(o_, false)}};
  work_->add_state(state);
  try {
    save_checkpoint(path, work_->model(), work_->tensors(), std::move(state), tokenizer_files_,
                    done());
  } catch (const Error& e) {
    if (final || e.exit_code == Exit::nonfinite) throw;
    console_->line(cat("warning: step ", step(), " was not saved: ", e.what(),
                       "; training goes on, next try at step ", step() + o_.save_every));
    return;
  }
  last_saved_ = path;
  record({{"kind", "save"}, {"step", step()}, {"path", path}});
  try {
    prune_checkpoints(o_.out, o_.keep);
  } catch (const Error& e) {
    console_->line(cat("warning: old checkpoints stay: ", e.what()));
  }
}

int TrainingRun::finish(const std::string& reason, int exit_code) {
  work_->end(log_->path());
  log_->record({{"kind", "memory"},
                {"category", "measured peak"},
                {"bytes", o_.device == "cuda" ? work_->peak_bytes() : peak_rss()}});
  record({{"kind", "end"}, {"step", step()}, {"reason", reason}});
  log_->require_written();
  console_->line(cat(reason, "; log ", log_->path(),
                     last_saved_.empty() ? "" : "; checkpoint " + last_saved_));
  return exit_code;
}

void TrainingRun::save_the_end() {
  if (work_->torn()) console_->line(cat("warning: step ", step() + 1, " is half done: not saved"));
  else if (!merged_ && last_saved_ != checkpoint_name(o_.out, step())) save(true);
}

// What must not hide the error that ends the run.
void TrainingRun::attempt(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    console_->line(cat("warning: ", e.what()));
  }
}

// An error from outside. Between two steps, such as a shard that turns out damaged, the state is
// that of the last whole step and is saved. The error itself is reported by the caller.
void TrainingRun::end_after(const Error& error) {
  attempt([&] { save_the_end(); });
  attempt([&] {
    finish(cat(done() ? "done, but: " : "stopped: ", error.what()), int(error.exit_code));
  });
}

void TrainingRun::train_until_the_end() {
  // A push may step over the step where an evaluation or a save is due.
  const bool local = o_.local.on();
  int64_t before = attempted_ = step();
  if (evaluation_due(local ? 0 : step() - 1)) {
    evaluate();
    if (evaluated_ && done()) save(true);  // a signal had come before this evaluation
  }
  while ((!done() && !stop_signal()) || !work_->at_rest()) {
    attempted_ = step() + 1;
    if (!work_->advance()) break;
    attempted_ = step();
    if (!work_->at_rest()) continue;
    evaluated_ = local && !due(o_.eval_every, before);
    if (evaluation_due(before)) evaluate();
    if (due(o_.save_every, before)) save(done());
    before = step();
  }
}

int TrainingRun::run() {
  watch_signals();
  prepare();
  const bool evaluates = eval_loader_ && o_.eval_every > 0;
  if (!saved_.is_null() && get<int64_t>(saved_, "step", checkpoint_) >= o_.steps &&
      (!evaluates ||
       (get<bool>(saved_, "evaluated", checkpoint_) && !merged_evaluation_missing()))) {
    std::cout << checkpoint_ << ": the run is finished at step " << o_.steps
              << "; a larger --steps continues it\n";
    if (!o_.is_given("--export")) return 0;
    for (const char* name : {"--train-data", "--steps", "--precision", "--init"})
      o_.given.erase(name);  // of the training that is over
    return export_only(o_);
  }
  peak_flops_ = ops_->peak_flops(o_.precision == "bf16" ? DType::BF16 : DType::F32);
  console_ = std::make_unique<Console>(o_.steps);
  make_work();
  restore();
  open_log();
  announce();
  try {
    train_until_the_end();
    if (o_.is_given("--export") && export_model(o_.export_to, work_->model(), tokenizer_files_,
                                                [] { return stop_signal() != 0; }))
      console_->line("exported to " + o_.export_to);
    if (done() && !stop_signal()) evaluate_merged();
  } catch (const Error& e) {
    if (e.exit_code != Exit::nonfinite) {
      end_after(e);
      throw;
    }
    const std::string last = last_saved_.empty() ? checkpoint_ : last_saved_;
    attempt([&] { finish(cat("stopped: ", e.what()), 3); });
    throw Error(Exit::nonfinite, cat("step ", attempted_, ": ", e.what()),
                (last.empty() ? "no checkpoint was written before it"
                              : "the last good checkpoint is " + last) +
                    "; a lower --lr, a longer --warmup or --precision fp32 may help");
  }
  if (const int signal = stop_signal()) {
    save_the_end();
    return finish(cat("interrupted by ", signal_name(signal)), signal_exit_code(signal));
  }
  return finish("done", 0);
}

}  // namespace

int train(Options options) { return TrainingRun(std::move(options)).run(); }

}  // namespace loqal
