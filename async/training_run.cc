#include "async/training_run.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "async/console.h"
#include "async/local_trainer.h"
#include "async/setup.h"
#include "async/signals.h"
#include "core/file.h"
#include "core/log.h"
#include "data/sha256.h"

namespace loqal {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What a resume must find unchanged: names and lengths of the shards, not where they lie.
std::string fingerprint(const Corpus& corpus) {
  std::string text = cat(corpus.tokenizer_hash());
  for (const CorpusFile& f : corpus.files())
    text += cat("\n", f.path.substr(f.path.find_last_of('/') + 1), " ", f.tokens);
  Sha256 digest;
  digest.update(text);
  return to_hex(digest.digest());
}

Schedule schedule_of(const Options& o) {
  return {.kind = schedule_kind(o.lr_schedule), .lr = o.lr, .min_lr = o.min_lr, .warmup = o.warmup,
          .steps = o.steps};
}

bool lies_in(const std::string& checkpoint, const std::string& out) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  return fs::equivalent(fs::absolute(checkpoint).lexically_normal().parent_path(), out, ignored);
}

// The id that stands before a text in this data: bos if the corpus begins with it, else the eos of the
// text before.
int start_token(Corpus& corpus) {
  int32_t first = 0, second = 0;
  corpus.window(0, 1, &first, &second);
  return corpus.bos() >= 0 && first == corpus.bos() ? corpus.bos() : corpus.eos();
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
  double time() const { return time_before_ + seconds_since(start_); }
  bool due(int64_t every) const { return every > 0 && (step_ % every == 0 || step_ == o_.steps); }

  Options o_;
  std::string checkpoint_;  // that this run resumes from, or ""
  std::string notice_;
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
  std::string last_saved_;  // by this session
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
  tokenizer_ = open_tokenizer(o_, checkpoint_);
  const int vocab = data_vocabulary(o_.train_data, tokenizer_.get());
  Options sizes = o_;
  if (!checkpoint_.empty()) sizes.init = checkpoint_;  // what --init named once may be gone
  config_ = resolve_model(sizes, vocab);
  sizes.init = o_.init;
  o_ = sizes;
  resolve_batch(o_, config_);
  const std::optional<TokenizerInfo> info = info_of(tokenizer_.get());
  const auto open = [&](const std::vector<std::string>& patterns, const char* role) {
    return std::make_unique<Corpus>(patterns, role, int(config_.V), info ? &*info : nullptr);
  };
  train_corpus_ = open(o_.train_data, "training");
  loader_ = std::make_unique<TrainLoader>(*train_corpus_, int(o_.batch_size), int(config_.T), uint64_t(o_.seed));
  if (!o_.val_data.empty()) {
    val_corpus_ = open(o_.val_data, "validation");
    eval_loader_ =
        std::make_unique<EvalLoader>(*val_corpus_, int(o_.batch_size), int(config_.T), o_.eval_tokens);
  } else {
    o_.eval_every = 0;
  }
  const bool own_log = checkpoint_.empty() ? !o_.resume.empty() : lies_in(checkpoint_, o_.out);
  if (!own_log && JsonlLog::exists(o_.out + "/log.jsonl"))
    fail(cat(o_.out, "/log.jsonl: this directory already holds a run"),
         cat("continue it with --resume ", o_.out, ", or choose another --out"));
  ops_ = make_device(o_, false);
  create_directories(o_.out);
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
  if (get<std::string>(corpus, "fingerprint", where) != fingerprint(*train_corpus_))
    fail(cat("the training data is not that of ", checkpoint_, ": it had ", get<int64_t>(corpus, "files", where),
             " shards with ", get<int64_t>(corpus, "tokens", where), " tokens, found ",
             train_corpus_->files().size(), " with ", train_corpus_->tokens()),
         "give the same --train-data, or start a new run with --init");
  load_checkpoint(checkpoint_, saved_, *parts_.model, *parts_.optimizer);
  step_ = get<int64_t>(saved_, "step", where);
  tokens_ = get<int64_t>(saved_, "tokens", where);
  evaluated_ = get<bool>(saved_, "evaluated", where);
  loader_->seek(get<uint64_t>(saved_, "position", where));
  trainer_->set_steps_done(step_);
}

// The wall clock goes on where the log says it was: it is no part of the checkpoint, whose bytes must
// not depend on it.
double time_in_log(const std::string& path, int64_t step) {
  std::ifstream in(path);
  double time = 0;
  for (std::string line; std::getline(in, line);) {
    const Json record = Json::parse(line, nullptr, false);
    if (!record.is_discarded() && record.is_object() && record.value("step", int64_t(0)) <= step)
      time = record.value("time", time);
  }
  return time;
}

void TrainingRun::open_log() {
  const std::string path = o_.out + "/log.jsonl";
  if (o_.resume.empty()) {
    log_ = std::make_unique<JsonlLog>(path);
  } else {
    // --resume auto after a crash before the first checkpoint: all that was logged moves aside.
    const int64_t from = checkpoint_.empty() ? -1 : step_;
    time_before_ = time_in_log(path, from);
    log_ = std::make_unique<JsonlLog>(path, from);
    set_aside_checkpoints_after(o_.out, step_);
  }
  start_ = Clock::now();
}

void TrainingRun::announce() {
  const int64_t per_step = o_.batch_size * config_.T * o_.grad_accum;
  const ParamTable& table = parts_.model->table();
  Json run = {{"kind", "run"}, {"version", "0.1"}, {"device", ops_->description()}, {"precision", o_.precision}};
  if (!checkpoint_.empty()) run["resumed_step"] = step_, run["resumed_from"] = checkpoint_;
  run["parameters"] = parts_.model->parameter_count();
  run["tokens_per_step"] = per_step;
  run["initial_loss"] = std::log(double(config_.V));
  run["peak_flops"] = peak_flops_;
  run["options"] = options_to_json(o_, true);
  for (const Corpus* corpus : {train_corpus_.get(), val_corpus_.get()}) {
    if (!corpus) continue;
    Json files;
    for (const CorpusFile& f : corpus->files()) files.push_back({{"path", f.path}, {"tokens", f.tokens}});
    run[corpus->role()] = files;
  }
  log_->write(run);
  for (const auto& [category, bytes] : ops_->memory_table())
    if (bytes) log_->write({{"kind", "memory"}, {"category", category}, {"bytes", bytes}});

  std::cout << "device      " << ops_->description() << ", " << o_.precision << ", "
            << format("%.0f GFLOP/s measured", peak_flops_ * 1e-9) << "\n";
  print_model(std::cout, config_, table);
  const int T = int(config_.T);
  std::cout << "data        " << train_corpus_->tokens() << " tokens in " << train_corpus_->files().size()
            << (train_corpus_->files().size() == 1 ? " shard, " : " shards, ") << loader_->rows_per_epoch() << " windows of " << T << ", "
            << train_corpus_->dropped(T) << " tokens are no target";
  if (val_corpus_) std::cout << "; evaluation on " << eval_loader_->tokens() << " tokens";
  std::cout << "\nrun         " << o_.steps << " steps x " << per_step << " tokens (batch " << o_.batch_size << " x "
            << config_.T << (o_.grad_accum > 1 ? cat(" x ", o_.grad_accum, " accumulated") : "") << ") = "
            << short_number(double(o_.steps * per_step)) << " tokens; a uniform guess has loss "
            << format("%.3f", std::log(double(config_.V))) << "\nlog         " << log_->path() << "\n";
  if (!checkpoint_.empty())
    std::cout << "resumed     " << checkpoint_ << ", step " << step_ << ", next learning rate "
              << schedule_of(o_).at(step_) << "\n";
  if (!notice_.empty()) std::cout << "notice      " << notice_ << "\n";
  std::cout << std::flush;
}

void TrainingRun::evaluate() {
  const std::optional<double> loss = mean_loss(*parts_.model, *eval_loader_, o_.batch_size, config_.T,
                                               [] { return stop_signal() != 0; });
  if (!loss) return;  // a signal: the resumed run evaluates this step again
  if (!std::isfinite(*loss)) fail_nonfinite("the validation loss is not finite; first in " + parts_.model->first_nonfinite());
  log_->write({{"kind", "eval"}, {"step", step_}, {"loss", number(*loss)}, {"ppl", number(std::exp(*loss))},
               {"tokens", eval_loader_->tokens()}, {"weights", "effective"}, {"time", time()}});
  console_->line(format("eval %lld  loss %.4f  ppl %.2f", static_cast<long long>(step_), *loss, std::exp(*loss)));
  evaluated_ = true;
}

// A save that fails in the middle of a run must not end it: the older checkpoint is intact, the disk
// may have room again at the next one. The last save has no next one.
void TrainingRun::save(bool final) {
  const std::string path = checkpoint_name(o_.out, step_);
  Json state = {{"step", step_},
                {"tokens", tokens_},
                {"position", loader_->position()},
                {"evaluated", evaluated_},
                {"corpus", {{"fingerprint", fingerprint(*train_corpus_)},
                            {"files", train_corpus_->files().size()},
                            {"tokens", train_corpus_->tokens()}}},
                {"options", options_to_json(o_, false)}};
  TokenizerFiles files{{}, start_token(*train_corpus_), train_corpus_->eos()};
  if (tokenizer_) files.paths = tokenizer_->files();
  try {
    save_checkpoint(path, *parts_.model, *parts_.optimizer, std::move(state), files);
  } catch (const Error& e) {
    if (final || e.exit_code == Exit::nonfinite) throw;
    console_->line(cat("warning: step ", step_, " was not saved: ", e.what(), "; training goes on, next try at step ",
                       step_ + o_.save_every));
    return;
  }
  prune_checkpoints(o_.out, o_.keep);
  log_->write({{"kind", "save"}, {"step", step_}, {"path", path}, {"time", time()}});
  last_saved_ = path;
}

void TrainingRun::log_step(const StepResult& r, double seconds) {
  const double rate = double(o_.batch_size * config_.T * o_.grad_accum) / seconds;
  const double mfu = rate * flops_per_token(config_) / peak_flops_;
  log_->write({{"kind", "train"}, {"step", step_}, {"loss", number(r.loss)}, {"lr", r.lr},
               {"grad_norm", number(r.grad_norm)}, {"tokens", tokens_}, {"tokens_per_s", rate},
               {"step_ms", seconds * 1e3}, {"mfu", mfu}, {"time", time()}});
  average_seconds_ = average_seconds_ == 0 ? seconds : 0.9 * average_seconds_ + 0.1 * seconds;
  console_->step(step_,
                 format("loss %.4f  lr %.2e  norm %.3f  %s tok/s  %.0f ms  mfu %.0f%%", r.loss, r.lr, r.grad_norm,
                        short_number(rate).c_str(), seconds * 1e3, mfu * 100),
                 average_seconds_);
  if (r.skipped) console_->line(cat("notice: ", r.skipped, " batches without a target were passed over"));
}

int TrainingRun::finish(const std::string& reason, int exit_code) {
  log_->write({{"kind", "memory"}, {"category", "measured peak"}, {"bytes", peak_rss()}});
  log_->write({{"kind", "end"}, {"step", step_}, {"reason", reason}, {"time", time()}});
  console_->line(cat(reason, "; log ", log_->path(), last_saved_.empty() ? "" : "; checkpoint " + last_saved_));
  return exit_code;
}

int TrainingRun::run() {
  watch_signals();
  prepare();
  if (!saved_.is_null() && get<int64_t>(saved_, "step", checkpoint_) >= o_.steps) {
    std::cout << checkpoint_ << ": the run is finished at step " << o_.steps
              << "; a larger --steps continues it\n";
    return 0;
  }
  peak_flops_ = ops_->peak_flops(o_.precision == "bf16" ? DType::BF16 : DType::F32);
  parts_ = build_parts(*ops_, config_, o_, true);
  trainer_ = std::make_unique<LocalTrainer>(*parts_.model, *parts_.optimizer, *parts_.sink, *loader_,
                                            schedule_of(o_), o_.batch_size, config_.T, o_.grad_accum);
  console_ = std::make_unique<Console>(o_.steps);
  restore();
  open_log();
  announce();
  int64_t attempted = step_;
  try {
    if (due(o_.eval_every) && !evaluated_) evaluate();
    while (step_ < o_.steps && !stop_signal()) {
      const Clock::time_point begin = Clock::now();
      attempted = step_ + 1;
      const std::optional<StepResult> result = trainer_->step([] { return stop_signal() != 0; });
      if (!result) break;
      step_ = trainer_->steps_done();
      tokens_ += result->targets;
      evaluated_ = false;
      log_step(*result, seconds_since(begin));
      if (due(o_.eval_every)) evaluate();
      if (due(o_.save_every)) save(step_ == o_.steps);
    }
  } catch (const Error& e) {
    if (e.exit_code != Exit::nonfinite) throw;
    const std::string last = last_saved_.empty() ? checkpoint_ : last_saved_;
    finish(cat("stopped: ", e.what()), 3);
    throw Error(Exit::nonfinite, cat("step ", attempted, ": ", e.what()),
                (last.empty() ? "no checkpoint was written before it" : "the last good checkpoint is " + last) +
                    "; a lower --lr, a longer --warmup or --precision fp32 may help");
  }
  if (const int signal = stop_signal()) {
    if (last_saved_ != checkpoint_name(o_.out, step_)) save(true);
    return finish(signal == SIGINT ? "interrupted by Ctrl-C" : "interrupted by SIGTERM", signal_exit_code(signal));
  }
  return finish("done", 0);
}

}  // namespace

int train(Options options) { return TrainingRun(std::move(options)).run(); }

}  // namespace loqal
