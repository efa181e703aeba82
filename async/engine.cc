#include "async/engine.h"

#include "core/error.h"
#include "core/json.h"

namespace loqal {

Engine::Engine(Scheduler& scheduler, ServerLink& server, std::vector<Trainer*> trainers,
               const EngineConfig& config, std::atomic<bool>* stop)
    : scheduler_(scheduler),
      server_(server),
      trainers_(std::move(trainers)),
      config_(config),
      stop_(stop),
      flights_(trainers_.size()),
      pool_(config.threads, int(trainers_.size())) {
  LOQAL_ASSERT(int(trainers_.size()) == scheduler.workers(), trainers_.size(), " trainers");
}

Engine::~Engine() {
  if (stop_) *stop_ = true;
}

void Engine::begin(const Job& job) {
  Flight& flight = flights_[size_t(job.worker)];
  flight.start = server_.pull();
  flight.computed = false;
  const bool fresh = config_.reset_inner || flight.fresh;
  flight.fresh = false;
  Trainer* trainer = trainers_[size_t(job.worker)];
  pool_.add(job.worker, job.arrival, [this, &flight, trainer, job, fresh] {
    try {
      flight.round = trainer->train(job, *flight.start, fresh);
    } catch (const Error& e) {
      // Other rounds go on to their ends: half a round must not be pushed.
      if (e.exit_code != Exit::nonfinite) throw;
      flight.round = {{}, e.what()};
    }
  });
}

void Engine::await(int worker) {
  Flight& flight = flights_[size_t(worker)];
  if (flight.computed) return;
  try {
    pool_.wait(worker);
  } catch (const Error& e) {  // after a resume: a push that is refused
    flight.round = {{}, e.what()};
    flight.error = std::current_exception();
  }
  flight.computed = true;
}

Commit Engine::next() {
  if (!scheduler_.next_worker())
    for (const Job& job : scheduler_.restart()) begin(job);
  const std::optional<int> next = scheduler_.next_worker();
  LOQAL_ASSERT(next, "nobody computes");
  const int worker = *next;
  Flight& flight = flights_[size_t(worker)];
  await(worker);
  if (flight.error) std::rethrow_exception(flight.error);
  Commit commit{*scheduler_.next_push(), std::move(flight.round), {}};
  const Arrival& arrival = commit.arrival;
  Push push{.worker = worker,
            .steps = arrival.job.steps,
            .staleness = arrival.staleness(),
            .failure = commit.round.failure};
  if (push.failure.empty()) push.delta = trainers_[size_t(worker)]->delta();
  if (config_.keep_starts) push.start = flight.start;
  flight.start = nullptr;  // so that the server need not copy weights that nobody uses any more
  commit.verdict = server_.push(push);
  flight.fresh = commit.verdict.distrust;
  if (scheduler_.config().sync && scheduler_.idle()) server_.end_round();
  return commit;
}

void Engine::finish_rounds() {
  for (int w = 0; w < scheduler_.workers(); w++)
    if (scheduler_.running(w)) await(w);
}

int Engine::unfinished_rounds() const {
  int n = 0;
  for (int w = 0; w < scheduler_.workers(); w++)
    n += scheduler_.running(w) && !flights_[size_t(w)].computed;
  return n;
}

bool Engine::failed(int worker) const {
  const Flight& flight = flights_[size_t(worker)];
  return scheduler_.running(worker) && flight.computed && !flight.round.failure.empty();
}

Json Engine::state() const {
  Json fresh = Json::array(), rounds = Json::array();
  for (int w = 0; w < scheduler_.workers(); w++) {
    const Flight& flight = flights_[size_t(w)];
    fresh.push_back(flight.fresh);
    Json steps = Json::array();
    if (scheduler_.running(w))
      for (const StepResult& r : flight.round.steps)
        steps.push_back({number(r.loss), r.lr, number(r.grad_norm), r.targets, r.skipped});
    rounds.push_back(
        {{"failure", scheduler_.running(w) ? flight.round.failure : ""}, {"steps", steps}});
  }
  return {{"fresh", fresh}, {"rounds", rounds}};
}

void Engine::restore(const Json& state, const std::string& where) {
  const auto fresh = get<std::vector<bool>>(state, "fresh", where);
  const Json rounds = get<Json>(state, "rounds", where);
  if (fresh.size() != flights_.size() || rounds.size() != flights_.size())
    fail(cat(where, ": state of ", rounds.size(), " rounds, expected ", flights_.size()));
  for (size_t w = 0; w < flights_.size(); w++) {
    Flight& flight = flights_[w];
    flight.fresh = fresh[w];
    flight.computed = scheduler_.running(int(w)).has_value();
    flight.round = {{}, get<std::string>(rounds[w], "failure", where)};
    for (const Json& step : get<Json>(rounds[w], "steps", where)) {
      if (!step.is_array() || step.size() != 5) fail(cat(where, ": a step has 5 numbers"));
      const Json named = {{"loss", step[0]},
                          {"lr", step[1]},
                          {"norm", step[2]},
                          {"targets", step[3]},
                          {"skipped", step[4]}};
      flight.round.steps.push_back({.loss = get<double>(named, "loss", where),
                                    .lr = get<double>(named, "lr", where),
                                    .grad_norm = get<double>(named, "norm", where),
                                    .targets = get<int64_t>(named, "targets", where),
                                    .skipped = get<int64_t>(named, "skipped", where)});
    }
  }
}

}  // namespace loqal
