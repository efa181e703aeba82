// The two ways gradients reach the optimizer: all at once after the last micro-batch, or layer by
// layer during the backward pass, when only one layer's gradient ever exists.
#pragma once
#include "optim/optimizer.h"

namespace loqal {

/// What a step did, for the log.
struct StepNorm {
  double grad_norm = 0;  ///< global, before clipping
  double scale = 1;      ///< applied by clipping
};

class StepSink : public GradSink {
 public:
  /// Before the first micro-batch of a step.
  virtual void begin_step() = 0;
  /// Before each micro-batch: later ones accumulate.
  virtual void begin_micro_batch(int index) = 0;
  /// After the last one: clips and updates what is not updated yet.
  virtual StepNorm finish_step() = 0;
};

/// Whole-model gradient: accumulation over micro-batches and clipping by the global norm.
class FullGradSink final : public StepSink {
 public:
  FullGradSink(Ops& ops, const ParamTable& table, Updater& updater, double clip);
  float* buffer(int group) override { return grads_.as<float>() + table_.grad_group_offset(group); }
  bool accumulate() const override { return micro_batch_ > 0; }
  void complete(int) override {}
  void begin_step() override {}
  void begin_micro_batch(int index) override { micro_batch_ = index; }
  StepNorm finish_step() override;

 private:
  const ParamTable& table_;
  Updater& updater_;
  double clip_;
  int micro_batch_ = 0;
  Buffer grads_;
};

/// Updates each group as soon as its gradient is complete (LOMO, Lv et al. 2023): the memory of one
/// layer's gradient, and of the embedding's. One micro-batch only; no clipping by a norm that is
/// not known yet.
class PerLayerSink final : public StepSink {
 public:
  PerLayerSink(Ops& ops, const ParamTable& table, Updater& updater);
  float* buffer(int group) override { return (group == 0 ? embedding_ : layer_).as<float>(); }
  bool accumulate() const override { return false; }
  void complete(int group) override;
  void begin_step() override { sum_squares_ = 0; }
  void begin_micro_batch(int) override {}
  StepNorm finish_step() override;

 private:
  const ParamTable& table_;
  Updater& updater_;
  double sum_squares_ = 0;
  Buffer embedding_, layer_;
};

}  // namespace loqal
