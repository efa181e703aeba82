#include "async/scheduler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/json.h"
#include "core/philox.h"

namespace loqal {

std::vector<int64_t> steps_of_workers(const ScheduleConfig& config) {
  double fastest = config.devices.front().seconds_per_step;
  for (const Device& d : config.devices) fastest = std::min(fastest, d.seconds_per_step);
  std::vector<int64_t> steps;
  for (const Device& d : config.devices) {
    const double share = config.dylu ? fastest / d.seconds_per_step : 1.0;
    // The sum is for quotients that are whole numbers but for rounding.
    const double rounded_down = std::floor(share * double(config.inner_steps) + 1e-9);
    steps.push_back(std::max<int64_t>(1, int64_t(rounded_down)));
  }
  return steps;
}

Scheduler::Scheduler(const ScheduleConfig& config, Sampler sampler)
    : config_(config),
      sampler_(std::move(sampler)),
      running_(config.devices.size()),
      rounds_(config.devices.size()),
      computing_(config.devices.size()),
      shards_(config.devices.size()) {
  LOQAL_ASSERT(!config.devices.empty(), "no workers");
  steps_ = steps_of_workers(config);
}

int Scheduler::in_flight() const {
  return int(std::count_if(running_.begin(), running_.end(),
                           [](const std::optional<Job>& job) { return job.has_value(); }));
}

std::optional<int> Scheduler::next_worker() const {
  const std::optional<Job>* first = nullptr;
  for (const std::optional<Job>& job : running_)  // the lowest worker on ties
    if (job && (!first || job->arrival < (*first)->arrival)) first = &job;
  const bool closed =
      first && !config_.sync && window_ && (*first)->arrival - *window_ > config_.grace;
  if (!first || closed) return {};
  return (*first)->worker;
}

std::optional<Arrival> Scheduler::next_push() {
  const std::optional<int> worker = next_worker();
  if (!worker) return {};
  std::optional<Job>& first = running_[size_t(*worker)];
  const Arrival result{*first, pushes_++, version_};
  first.reset();
  time_ = std::max(time_, result.job.arrival);
  window_ = std::min(window_.value_or(time_), time_);
  local_steps_ += result.job.steps;
  computing_[size_t(result.job.worker)] += result.job.computed - result.job.pulled;
  histogram_.resize(std::max(histogram_.size(), size_t(result.staleness()) + 1));
  histogram_[size_t(result.staleness())]++;
  if (!config_.sync || idle()) version_++;
  return result;
}

std::vector<Job> Scheduler::restart() {
  window_.reset();
  std::vector<Job> jobs;
  for (int w = 0; w < workers(); w++) {
    if (running_[size_t(w)]) continue;
    const Device& d = config_.devices[size_t(w)];
    Job job{.worker = w, .shard = sample(w), .round = rounds_[size_t(w)]++};
    job.steps = steps_[size_t(w)];
    job.start_version = version_;
    ShardCount& shard = shards_[size_t(job.shard)];
    job.first_step = shard.steps;
    shard.steps += job.steps;  // reserved: another worker on this shard goes on behind them
    shard.visits++;
    assignments_++;
    job.start = time_;
    job.pulled = job.start + (d.latency + (d.down > 0 ? double(config_.bytes_down) / d.down : 0));
    job.computed = job.pulled + double(job.steps) * d.seconds_per_step * jitter(w, job.round);
    job.arrival = job.computed + (d.latency + (d.up > 0 ? double(config_.bytes_up) / d.up : 0));
    jobs.push_back(job);
    running_[size_t(w)] = job;
  }
  return jobs;
}

double Scheduler::jitter(int worker, int64_t round) const {
  const double sigma = config_.devices[size_t(worker)].jitter;
  if (sigma == 0) return 1;
  const PhiloxStream random(config_.seed, Purpose::jitter, uint32_t(worker));
  return std::exp(sigma * random.normal(uint64_t(round)) - 0.5 * sigma * sigma);
}

int Scheduler::sample(int worker) const {
  if (sampler_) return sampler_(worker, shards_);
  if (config_.sampling == Sampling::own) return worker;
  int64_t total = 0, fewest = shards_.front().visits;
  for (const ShardCount& s : shards_) {
    total += s.steps;
    fewest = std::min(fewest, s.visits);
  }
  std::vector<double> weights;
  for (const ShardCount& s : shards_) {
    const double behind =
        1.0 / double(shards_.size()) - (total > 0 ? double(s.steps) / double(total) : 0.0);
    weights.push_back(config_.sampling == Sampling::fewest ? double(s.visits == fewest)
                                                           : std::max(behind, 0.0));
  }
  double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sum == 0) {  // in balance
    weights.assign(weights.size(), 1.0);
    sum = double(weights.size());
  }
  const PhiloxStream random(config_.seed, Purpose::shards);
  double u = double(random.bits(uint64_t(assignments_))) * 0x1p-32 * sum;
  int last = 0;
  for (int s = 0; s < int(weights.size()); s++) {
    if (weights[size_t(s)] == 0) continue;
    last = s;
    if ((u -= weights[size_t(s)]) < 0) break;
  }
  return last;
}

std::vector<double> Scheduler::utilisation() const {
  std::vector<double> shares;
  for (const double seconds : computing_) shares.push_back(time_ > 0 ? seconds / time_ : 0.0);
  return shares;
}

Json to_json(const Job& j) {
  return {{"worker", j.worker},         {"shard", j.shard},   {"round", j.round},
          {"first_step", j.first_step}, {"steps", j.steps},   {"start_version", j.start_version},
          {"start", j.start},           {"pulled", j.pulled}, {"computed", j.computed},
          {"arrival", j.arrival}};
}

Job job_from_json(const Json& j, const std::string& where) {
  return {get<int>(j, "worker", where),      get<int>(j, "shard", where),
          get<int64_t>(j, "round", where),   get<int64_t>(j, "first_step", where),
          get<int64_t>(j, "steps", where),   get<int64_t>(j, "start_version", where),
          get<double>(j, "start", where),    get<double>(j, "pulled", where),
          get<double>(j, "computed", where), get<double>(j, "arrival", where)};
}

namespace {

Json devices_json(const std::vector<Device>& devices) {
  Json list = Json::array();
  for (const Device& d : devices)
    list.push_back({d.seconds_per_step, d.jitter, d.latency, d.up, d.down});
  return list;
}

}  // namespace

std::vector<Device> Scheduler::devices_of(const Json& state, const std::string& where) {
  std::vector<Device> devices;
  for (const auto& d : get<std::vector<std::vector<double>>>(state, "devices", where)) {
    if (d.size() != 5) fail(cat(where, ": a device has 5 numbers"));
    devices.push_back({d[0], d[1], d[2], d[3], d[4]});
  }
  return devices;
}

Json Scheduler::state() const {
  Json state = {{"devices", devices_json(config_.devices)},
                {"time", time_},
                {"window", window_ ? Json(*window_) : Json(nullptr)},
                {"local_steps", local_steps_},
                {"pushes", pushes_},
                {"version", version_},
                {"assignments", assignments_},
                {"rounds", rounds_},
                {"computing", computing_},
                {"staleness", histogram_}};
  Json shards = Json::array(), running = Json::array();
  for (const ShardCount& s : shards_) shards.push_back({s.steps, s.visits});
  for (const std::optional<Job>& job : running_)
    if (job) running.push_back(to_json(*job));
  state["shards"] = shards;
  state["running"] = running;
  return state;
}

void Scheduler::restore(const Json& state, const std::string& where) {
  if (const Json devices = get<Json>(state, "devices", where);
      devices != devices_json(config_.devices))
    fail_usage(
        cat(where, ": the run that is resumed has other devices: ", dump_json(devices), ", now ",
            dump_json(devices_json(config_.devices))),
        "give the same --device-profile: [seconds a step, jitter, latency, up, down] of each");
  time_ = get<double>(state, "time", where);
  window_.reset();
  if (!get<Json>(state, "window", where).is_null()) window_ = get<double>(state, "window", where);
  local_steps_ = get<int64_t>(state, "local_steps", where);
  pushes_ = get<int64_t>(state, "pushes", where);
  version_ = get<int64_t>(state, "version", where);
  assignments_ = get<int64_t>(state, "assignments", where);
  rounds_ = get<std::vector<int64_t>>(state, "rounds", where);
  computing_ = get<std::vector<double>>(state, "computing", where);
  histogram_ = get<std::vector<int64_t>>(state, "staleness", where);
  const Json shards = get<Json>(state, "shards", where);
  for (const size_t found : {rounds_.size(), computing_.size(), shards.size()})
    if (found != running_.size())
      fail(cat(where, ": state of ", found, " workers, expected ", running_.size()));
  for (size_t s = 0; s < shards_.size(); s++)
    shards_[s] = {shards[s].at(0).get<int64_t>(), shards[s].at(1).get<int64_t>()};
  for (const Json& json : get<Json>(state, "running", where)) {
    const Job job = job_from_json(json, where);
    const bool valid =
        job.worker >= 0 && job.worker < workers() && job.shard >= 0 && job.shard < workers();
    if (!valid) fail(cat(where, ": a round of worker ", job.worker, " on shard ", job.shard));
    running_[size_t(job.worker)] = job;
  }
}

}  // namespace loqal
