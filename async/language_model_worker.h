// LanguageModelWorker: one worker of Local-SGD. A round of it is plain training, a LocalTrainer on
// the weights that it was given and a stretch of one data shard.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>

#include "async/local_trainer.h"
#include "async/setup.h"
#include "async/trainer.h"

namespace loqal {

/// The data of a job: the loader of its shard at the first row, and the row behind its last.
struct RoundData {
  RoundData(const Job& job, Corpus& corpus, const Options& options, int64_t T);
  uint64_t rows;  ///< of a step
  TrainLoader loader;
  uint64_t end;
};

class LanguageModelWorker final : public Trainer {
 public:
  /// `corpus` is this worker's own. `stop` ends a round early, whose result nobody will use then.
  /// `turn` is held during a round, by turns with other workers of the same device; may be null.
  LanguageModelWorker(std::unique_ptr<Ops> ops, const ModelConfig& config, const Options& options,
                      std::unique_ptr<Corpus> corpus, const std::atomic<bool>& stop,
                      std::mutex* turn);

  Round train(const Job& job, std::span<const float> start, bool fresh) override;
  std::span<float> delta() override;

  Model& model() { return *parts_.model; }
  Optimizer& optimizer() { return *parts_.optimizer; }
  const Ops& ops() const { return *ops_; }
  /// Numbers in start weights and delta: the model's trainable segment, gaps and padding included.
  int64_t size() const { return parts_.model->table().elements(); }
  void set_weights(std::span<const float> weights);
  std::vector<float> weights();

 private:
  Tensor segment() const;

  std::unique_ptr<Ops> ops_;
  Parts parts_;
  std::unique_ptr<Corpus> corpus_;
  const ModelConfig config_;
  const Options options_;
  const std::atomic<bool>& stop_;
  std::mutex* turn_;
  std::vector<float> delta_;  // on the host, for a device with memory of its own
};

}  // namespace loqal
