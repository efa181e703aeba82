// Scheduler: which worker computes what and when, on a virtual clock. No model and no threads: it
// serves the engine, --dry-run and the tests alike, and is a pure function of its configuration.
//
// Asynchronous Local-SGD (Liu et al. 2024, arXiv 2401.09135, Alg. 2, 4, 5): pushes are handled one
// by one in the order of their arrival. The first of a batch opens a window of `grace` seconds; who
// arrives within it is handled too, then all of them restart from the same weights. The window is
// clairvoyant: if the next arrival lies behind it, nobody waits (doc/async.md).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json_fwd.h"

namespace loqal {

/// What a worker computes on. Times are in seconds of the virtual clock.
struct Device {
  double seconds_per_step = 1;
  double jitter = 0;   ///< sigma of a log-normal factor of mean 1 on each round's computing time
  double latency = 0;  ///< of each transfer
  double up = 0, down = 0;  ///< bytes/s towards the server and back; 0: only the latency counts
};

/// One round of one worker: steps inner steps on a data shard, from weights of start_version.
struct Job {
  int worker = 0, shard = 0;
  int64_t round = 0;       ///< of this worker, from 0
  int64_t first_step = 0;  ///< on the shard's own clock: its position in data and learning rate
  int64_t steps = 0;
  int64_t start_version = 0;
  double start = 0, pulled = 0, computed = 0, arrival = 0;  ///< the weights are here, ...
  bool operator==(const Job&) const = default;
};

/// A push that the server handles now.
struct Arrival {
  Job job;
  int64_t update = 0;   ///< number of this push, from 0
  int64_t version = 0;  ///< of the server's weights before it
  int64_t staleness() const { return version - job.start_version; }
};

/// A shard of the data, as its sampling sees it: what was assigned, whether or not it is done.
struct ShardCount {
  int64_t steps = 0, visits = 0;
  bool operator==(const ShardCount&) const = default;
};

enum class Sampling { progress, fewest, own };

struct ScheduleConfig {
  std::vector<Device> devices;  ///< one for each worker; there are as many shards of equal size
  int64_t inner_steps = 50;     ///< H: of a round, or with dylu of a round of the fastest worker
  bool dylu = false;
  bool sync = false;  ///< DiLoCo: all wait for all; a round is one version of the weights
  double grace = 0;   ///< seconds
  Sampling sampling = Sampling::progress;
  int64_t bytes_up = 0, bytes_down = 0;  ///< of one push and one pull
  uint64_t seed = 1;
};

/// Inner steps of each worker: inner_steps or, with dylu, floor(speed / fastest speed * H), at
/// least 1 (paper, Eq. 6).
std::vector<int64_t> steps_of_workers(const ScheduleConfig& config);

class Scheduler {
 public:
  /// Chooses the shard of a worker's next round.
  using Sampler = std::function<int(int worker, const std::vector<ShardCount>& shards)>;
  /// Without `sampler`: by config.sampling. progress: with probability in proportion to
  /// max(size's share - progress's share, 0) (Eq. 2); fewest: any of those with the fewest visits;
  /// both uniform where all are alike.
  explicit Scheduler(const ScheduleConfig& config, Sampler sampler = {});

  /// Whose push is the next. None: the window is closed (or nobody computes).
  std::optional<int> next_worker() const;
  /// That push; the clock moves to it.
  std::optional<Arrival> next_push();
  /// Closes the window: new rounds, starting now, for all workers that have none, in their order.
  std::vector<Job> restart();

  int workers() const { return int(config_.devices.size()); }
  const ScheduleConfig& config() const { return config_; }
  double time() const { return time_; }
  int64_t local_steps() const { return local_steps_; }  ///< of all pushes that were handled
  int64_t pushes() const { return pushes_; }
  int64_t version() const { return version_; }
  const std::vector<ShardCount>& shards() const { return shards_; }
  bool idle() const { return in_flight() == 0; }  ///< all have pushed, nobody has restarted
  /// The round of a worker; none while it waits.
  const std::optional<Job>& running(int worker) const { return running_[size_t(worker)]; }
  /// Computing time of handled rounds over time(): 0 to 1, for each worker.
  std::vector<double> utilisation() const;
  /// Number of pushes of each staleness.
  const std::vector<int64_t>& staleness_histogram() const { return histogram_; }

  Json state() const;
  /// Error if the state is not one of this configuration.
  void restore(const Json& state, const std::string& where);
  /// What a state says of the devices.
  static std::vector<Device> devices_of(const Json& state, const std::string& where);

 private:
  int in_flight() const;
  int sample(int worker) const;
  double jitter(int worker, int64_t round) const;

  ScheduleConfig config_;
  Sampler sampler_;
  std::vector<int64_t> steps_;               // of a round, per worker
  std::vector<std::optional<Job>> running_;  // per worker
  std::vector<int64_t> rounds_;              // begun, per worker
  std::vector<double> computing_;            // seconds of handled rounds, per worker
  std::vector<ShardCount> shards_;
  std::vector<int64_t> histogram_;
  double time_ = 0;
  std::optional<double> window_;  // when it was opened
  int64_t local_steps_ = 0, pushes_ = 0, version_ = 0, assignments_ = 0;
};

Json to_json(const Job& job);
Job job_from_json(const Json& json, const std::string& where);

}  // namespace loqal
