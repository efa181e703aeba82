// LocalSgd: the work of a run with several workers. It joins scheduler, server, engine and workers,
// and writes what each push did to the log.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "async/engine.h"
#include "async/language_model_worker.h"
#include "async/work.h"

namespace loqal {

class LocalSgd final : public Work {
 public:
  /// `open_corpus` opens the training data, once for each worker.
  LocalSgd(const WorkEnvironment& environment,
           const std::function<std::unique_ptr<Corpus>()>& open_corpus);

  Model& model() override;
  void begin() override;
  bool advance() override;
  int64_t step() const override { return scheduler_->local_steps(); }
  int64_t tokens() const override { return tokens_; }
  bool at_rest() const override { return !e_.options.local.sync || scheduler_->idle(); }
  void settle() override;
  void add_state(Json& state) override;
  void restore(const Json& state, const std::string& where) override;
  std::vector<StateTensor> tensors() override;
  std::map<std::string, int64_t> memory_table() const override;
  int64_t peak_bytes() const override;
  std::string next_rate() const override;
  void end(const std::string& log_path) override;

 private:
  int idle_worker() const;
  void log_steps(const Commit& commit, int64_t step_before);
  void log_push(const Commit& commit, double seconds);
  void add_segment(std::vector<StateTensor>& tensors, const std::string& prefix,
                   std::span<float> segment);

  const WorkEnvironment e_;
  int64_t threads_;               // that compute rounds
  std::deque<std::mutex> turns_;  // of each GPU
  std::vector<std::unique_ptr<LanguageModelWorker>> workers_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Server> server_;
  std::atomic<bool> stop_ = false;
  int lent_ = -1;                   // the worker whose model holds the server's weights, or -1
  int64_t tokens_ = 0, payload_;    // bytes of one transfer
  double seconds_per_step_ = 0;     // of wall clock, on average
  std::unique_ptr<Engine> engine_;  // the last member: its threads use the others
};

}  // namespace loqal
