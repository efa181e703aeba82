// Engine: Local-SGD as a conservative parallel discrete-event simulation. Rounds are computed by
// real threads, in any order; their pushes reach the server in the order of the virtual clock, each
// when its result is there. So what happens is the same, bit by bit, for any number of threads and
// any speed of the machine.
//
// A round is a function of what was known when it began (start weights, positions in the data, the
// worker's optimizer), so it may be computed long before its push is due, as a save does.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "async/scheduler.h"
#include "async/server.h"
#include "async/task_pool.h"
#include "async/trainer.h"

namespace loqal {

struct EngineConfig {
  int threads = 1;           ///< that compute rounds
  bool reset_inner = false;  ///< a new inner optimizer for each round
  bool keep_starts = false;  ///< pushes carry their start weights, for delay compensation
};

/// A round that was pushed.
struct Commit {
  Arrival arrival;
  Round round;
  Verdict verdict;
};

class Engine {
 public:
  /// One trainer for each of the scheduler's workers. The destructor sets `stop` (may be null), so
  /// that rounds whose results nobody will use can end early.
  Engine(Scheduler& scheduler, ServerLink& server, std::vector<Trainer*> trainers,
         const EngineConfig& config, std::atomic<bool>* stop = nullptr);
  ~Engine();

  /// Lets workers restart that are due, then waits for the next push and gives it to the server;
  /// in synchronous mode the last one of a round also ends it. A worker whose push is distrusted
  /// begins its next round with a new inner optimizer. What a worker's round threw comes out when
  /// its push is due, before anything has changed: state() is that of a run in which this push will
  /// be refused.
  Commit next();

  /// Computes all rounds in flight. Then state() and the trainers' delta() and optimizers are all
  /// that is to be saved of them.
  void finish_rounds();
  int unfinished_rounds() const;  ///< in flight, that finish_rounds() may have to wait for
  /// The worker's round in flight is computed and has no result.
  bool failed(int worker) const;
  Json state() const;
  /// After the scheduler was restored, whose running jobs are taken as computed: the caller puts
  /// their deltas, and starts if pushes carry them, into place.
  void restore(const Json& state, const std::string& where);
  /// Start weights of a worker's round; null while it waits.
  const Snapshot& start_of(int worker) const { return flights_[size_t(worker)].start; }
  void set_start(int worker, Snapshot start) { flights_[size_t(worker)].start = std::move(start); }

 private:
  struct Flight {
    Snapshot start;
    Round round;
    bool computed = false;  // the round is there
    bool fresh = false;     // the next round begins with a new inner optimizer
    std::exception_ptr error;
  };

  void begin(const Job& job);
  void await(int worker);

  Scheduler& scheduler_;
  ServerLink& server_;
  std::vector<Trainer*> trainers_;
  EngineConfig config_;
  std::atomic<bool>* stop_;
  std::vector<Flight> flights_;  // per worker
  TaskPool pool_;                // the last member: its threads use the others
};

}  // namespace loqal
