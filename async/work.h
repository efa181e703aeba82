// Work: what a run advances, plain training or Local-SGD. The run around it evaluates, logs, saves,
// resumes and stops, and knows no difference.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "async/console.h"
#include "async/local_trainer.h"
#include "async/setup.h"
#include "core/json.h"

namespace loqal {

/// What a run gives to its work.
struct WorkEnvironment {
  Options options;  ///< complete
  ModelConfig config;
  double peak_flops = 0;             ///< of the whole device
  std::function<void(Json)> record;  ///< a line for the log, to which the run adds "time"
  Console* console = nullptr;
};

class Work {
 public:
  virtual ~Work() = default;

  /// Holds the weights that are evaluated and saved, until the next advance(). Before begin():
  /// takes those to begin with.
  virtual Model& model() = 0;
  virtual void begin() = 0;

  /// One optimizer step, or one committed push, and its records. False: a signal came, and nothing
  /// has changed.
  virtual bool advance() = 0;
  virtual int64_t step() const = 0;    ///< optimizer steps, of all workers
  virtual int64_t tokens() const = 0;  ///< targets seen
  /// False in the middle of a synchronous round: its steps are counted, its weights are not there.
  virtual bool at_rest() const { return true; }

  /// An Error has left a step half done: what model() holds is of no step and must not be saved.
  virtual bool torn() const { return false; }
  /// Completes what is being computed; then tensors() and add_state() are what a save needs.
  virtual void settle() {}
  virtual void add_state(Json& state) = 0;
  /// Of state.json; model() holds its weights, begin() was called. The tensors follow.
  virtual void restore(const Json& state, const std::string& where) = 0;
  virtual std::vector<StateTensor> tensors() = 0;

  virtual std::map<std::string, int64_t> memory_table() const = 0;
  virtual int64_t peak_bytes() const = 0;     ///< on its device
  virtual std::string next_rate() const = 0;  ///< for the console, after a resume
  /// The session is over: its last records, and files beside the log at `log_path`.
  virtual void end(const std::string& log_path) { (void)log_path; }
};

/// One LocalTrainer.
class PlainTraining final : public Work {
 public:
  PlainTraining(const WorkEnvironment& environment, Ops& ops, TrainLoader& loader);

  Model& model() override { return *parts_.model; }
  void begin() override;
  bool advance() override;
  bool torn() const override { return trainer_.torn(); }
  int64_t step() const override { return trainer_.steps_done(); }
  int64_t tokens() const override { return tokens_; }
  void add_state(Json& state) override;
  void restore(const Json& state, const std::string& where) override;
  std::vector<StateTensor> tensors() override;
  std::map<std::string, int64_t> memory_table() const override { return ops_.memory_table(); }
  int64_t peak_bytes() const override { return ops_.peak_bytes(); }
  std::string next_rate() const override;

 private:
  void log(const StepResult& result);
  void log(const MergeRecord& record);

  const WorkEnvironment e_;
  Ops& ops_;
  TrainLoader& loader_;
  Parts parts_;
  LocalTrainer trainer_;
  int64_t tokens_ = 0;
  double average_seconds_ = 0;
  int zero_norms_ = 0;  // steps in a row
};

}  // namespace loqal
