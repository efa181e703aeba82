#include "async/local_sgd.h"

#include <chrono>
#include <cmath>

#include "async/signals.h"
#include "async/trace.h"
#include "core/threads.h"

namespace loqal {

namespace {

// On a CPU as many rounds at once as there are threads, and threads left over go to each worker's
// operations. On a GPU its workers take turns.
int64_t threads_of(const Options& o) { return o.threads > 0 ? o.threads : usable_cpus(); }

Options options_of_worker(const Options& o) {
  Options mine = o;
  mine.threads = std::max<int64_t>(1, threads_of(o) / o.local.workers);
  return mine;
}

}  // namespace

LocalSgd::LocalSgd(const WorkEnvironment& e,
                   const std::function<std::unique_ptr<Corpus>()>& open_corpus)
    : e_(e),
      threads_(std::min(
          e.options.device == "cpu" ? threads_of(e.options) : int64_t(e.options.gpus.size()),
          e.options.local.workers)),
      turns_(e.options.gpus.size()) {
  Options mine = options_of_worker(e.options);
  for (int64_t w = 0; w < e.options.local.workers; w++) {
    const size_t device = size_t(w) % mine.gpus.size();
    workers_.push_back(std::make_unique<LanguageModelWorker>(
        make_device(mine, false, mine.gpus[device]), e.config, mine, open_corpus(), stop_,
        mine.device == "cpu" ? nullptr : &turns_[device]));
  }
  payload_ = workers_[0]->model().parameter_count() * int64_t(sizeof(float));
  scheduler_ = std::make_unique<Scheduler>(schedule_config(e.options, payload_));
}

void LocalSgd::begin() {
  server_ = std::make_unique<Server>(server_config(e_.options.local), workers_[0]->weights());
  std::vector<Trainer*> trainers;
  for (const auto& worker : workers_) trainers.push_back(worker.get());
  engine_ =
      std::make_unique<Engine>(*scheduler_, *server_, trainers,
                               EngineConfig{.threads = int(threads_),
                                            .reset_inner = e_.options.local.inner_state == "reset",
                                            .keep_starts = e_.options.local.delay_compensation > 0},
                               &stop_);
  lent_ = 0;
}

// Whoever has just pushed does not compute, and its model is free until it restarts. So is that of
// a round without a result.
int LocalSgd::idle_worker() const {
  for (int w = 0; w < scheduler_->workers(); w++)
    if (!scheduler_->running(w) || engine_->failed(w)) return w;
  LOQAL_ASSERT(false, "all workers compute");
  return 0;
}

Model& LocalSgd::model() {
  if (!server_) return workers_[0]->model();
  if (lent_ < 0) {
    lent_ = idle_worker();
    workers_[size_t(lent_)]->set_weights(server_->weights());
  }
  return workers_[size_t(lent_)]->model();
}

bool LocalSgd::advance() {
  using Clock = std::chrono::steady_clock;
  if (stop_signal() && at_rest()) return false;  // a synchronous round is finished first
  const Clock::time_point begin = Clock::now();
  const int64_t before = step();
  lent_ = -1;
  const Commit commit = engine_->next();
  log_steps(commit, before);
  log_push(commit, std::chrono::duration<double>(Clock::now() - begin).count());
  const int64_t many = std::max<int64_t>(16, 4 * e_.options.local.workers);
  if (server_->distrusted_in_a_row() >= many)
    fail_nonfinite(cat("the last ", many, " pushes were refused: ", commit.verdict.reason),
                   "a lower --lr or --outer-lr may help");
  return true;
}

void LocalSgd::log_steps(const Commit& commit, int64_t step_before) {
  const Job& job = commit.arrival.job;
  const double seconds = (job.computed - job.pulled) / double(job.steps);
  const double share =  // of the whole device that computes this worker's round
      double(options_of_worker(e_.options).threads) / double(threads_of(e_.options));
  int64_t at = 0;
  for (const StepResult& r : commit.round.steps) {
    at += r.skipped + 1;
    tokens_ += r.targets;
    Json line = {{"kind", "train"}, {"step", step_before + at},         {"loss", number(r.loss)},
                 {"lr", r.lr},      {"grad_norm", number(r.grad_norm)}, {"tokens", tokens_}};
    if (r.seconds > 0) {  // computed by this session
      const double rate =
          double(e_.options.batch_size * e_.config.T * e_.options.grad_accum) / r.seconds;
      line["tokens_per_s"] = rate;
      line["step_ms"] = r.seconds * 1e3;
      line["mfu"] = rate * flops_per_token(e_.config) / (e_.peak_flops * share);
    }
    line["worker"] = job.worker, line["shard"] = job.shard, line["round"] = job.round;
    line["t_virtual"] = job.pulled + seconds * double(at);
    e_.record(line);
  }
}

void LocalSgd::log_push(const Commit& commit, double seconds) {
  const auto& [arrival, round, verdict] = commit;
  const Job& job = arrival.job;
  Json line = {{"kind", "push"},
               {"step", step()},
               {"update", arrival.update},
               {"t_virtual", job.arrival},
               {"t_wall", seconds},
               {"worker", job.worker},
               {"shard", job.shard},
               {"round", job.round},
               {"inner_steps", job.steps},
               {"start_version", job.start_version},
               {"version", arrival.version},
               {"staleness", arrival.staleness()},
               {"weight", verdict.weight},
               {"norm", number(verdict.norm)},
               {"cos_momentum", verdict.cos_momentum},
               {"cos_previous", verdict.cos_previous},
               {"bytes_up", payload_},
               {"bytes_down", payload_},
               {"accepted", verdict.accepted},
               {"reason", verdict.reason},
               {"t_start", job.start},
               {"t_pulled", job.pulled},
               {"t_computed", job.computed}};
  e_.record(line);
  double loss = 0;
  for (const StepResult& r : round.steps) loss += r.loss / double(round.steps.size());
  const double per_step = seconds / double(job.steps);
  seconds_per_step_ =
      seconds_per_step_ == 0 ? per_step : 0.95 * seconds_per_step_ + 0.05 * per_step;
  e_.console->step(
      step(),
      format("push %lld  worker %d  shard %d  %lld steps  stale %lld  loss %.4f  norm %.4f  "
             "virtual %s",
             static_cast<long long>(arrival.update), job.worker, job.shard,
             static_cast<long long>(job.steps), static_cast<long long>(arrival.staleness()), loss,
             verdict.norm, short_time(job.arrival).c_str()),
      seconds_per_step_);
  if (!verdict.accepted)
    e_.console->line(cat("warning: push ", arrival.update, " of worker ", job.worker,
                         " was refused: ", verdict.reason));
}

void LocalSgd::settle() {
  const int rounds = engine_->unfinished_rounds();
  if (rounds > 0 && stop_signal())
    e_.console->line(cat("finishing ", rounds, rounds == 1 ? " round that is" : " rounds that are",
                         " being computed, to save them; a second signal would lose them"));
  engine_->finish_rounds();
}

void LocalSgd::add_state(Json& state) {
  Json adam_steps = Json::array();
  for (const auto& worker : workers_) adam_steps.push_back(worker->optimizer().step_count());
  state["local_sgd"] = {{"scheduler", scheduler_->state()},
                        {"server", server_->state()},
                        {"engine", engine_->state()},
                        {"adam_steps", adam_steps}};
}

void LocalSgd::restore(const Json& state, const std::string& where) {
  tokens_ = get<int64_t>(state, "tokens", where);
  const Json mine = get<Json>(state, "local_sgd", where);
  const std::string at = where + ": local_sgd";
  scheduler_->restore(get<Json>(mine, "scheduler", at), at + ": scheduler");
  server_->restore(get<Json>(mine, "server", at), at + ": server");
  engine_->restore(get<Json>(mine, "engine", at), at + ": engine");
  const auto adam_steps = get<std::vector<int64_t>>(mine, "adam_steps", at);
  if (adam_steps.size() != workers_.size())
    fail(cat(at, ": state of ", adam_steps.size(), " workers, expected ", workers_.size()));
  for (size_t w = 0; w < workers_.size(); w++)
    workers_[w]->optimizer().set_step_count(adam_steps[w]);
  lent_ = -1;
  if (e_.options.local.delay_compensation == 0) return;
  for (int w = 0; w < scheduler_->workers(); w++)
    if (scheduler_->running(w))
      engine_->set_start(w, std::make_shared<std::vector<float>>(server_->weights().size()));
}

// The parameters of a vector that is laid out as the model's trainable segment.
void LocalSgd::add_segment(std::vector<StateTensor>& tensors, const std::string& prefix,
                           std::span<float> segment) {
  const Model& model = workers_[0]->model();
  for (int i = 0; i < model.table().size(); i++)
    if (model.table()[i].segment == Segment::trainable)
      tensors.push_back(
          {prefix + model.table()[i].name,
           model.table().view(i, segment.data(), DType::F32).row_slice(0, model.real_rows(i)),
           nullptr});
}

std::vector<StateTensor> LocalSgd::tensors() {
  std::vector<StateTensor> all;
  for (const auto& [name, vector] : server_->vectors())
    add_segment(all, cat("server.", name, "."), vector);
  for (int w = 0; w < scheduler_->workers(); w++) {
    LanguageModelWorker& worker = *workers_[size_t(w)];
    const std::string prefix = cat("worker", w, ".");
    for (StateTensor& t : optimizer_tensors(worker.model(), worker.optimizer(), prefix))
      all.push_back(std::move(t));
    if (!scheduler_->running(w)) continue;
    add_segment(all, prefix + "delta.", worker.delta());
    if (const Snapshot& start = engine_->start_of(w);
        start && e_.options.local.delay_compensation > 0)
      add_segment(all, prefix + "start.",
                  {const_cast<float*>(start->data()), start->size()});  // filled by a restore alone
  }
  return all;
}

std::map<std::string, int64_t> LocalSgd::memory_table() const {
  std::map<std::string, int64_t> table;
  for (const auto& worker : workers_)
    for (const auto& [category, bytes] : worker->ops().memory_table()) table[category] += bytes;
  table["server and start weights"] = local_sgd_bytes(e_.options, workers_[0]->model().table());
  return table;
}

int64_t LocalSgd::peak_bytes() const {
  int64_t bytes = 0;
  for (const auto& worker : workers_) bytes += worker->ops().peak_bytes();
  return bytes;
}

std::string LocalSgd::next_rate() const {
  return cat("push ", scheduler_->pushes(), " at ", scheduler_->time(), " virtual seconds");
}

void LocalSgd::end(const std::string& log_path) {
  e_.record({{"kind", "workers"},
             {"step", step()},
             {"t_virtual", scheduler_->time()},
             {"pushes", scheduler_->pushes()},
             {"accepted", server_->accepted()},
             {"utilisation", scheduler_->utilisation()},
             {"staleness", scheduler_->staleness_histogram()}});
  try {
    write_trace(log_path);
  } catch (const Error& e) {  // a picture; the run itself is saved
    e_.console->line(cat("warning: ", e.what()));
  }
}

}  // namespace loqal
