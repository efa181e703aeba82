// LoQT step by step on a small model, for tests: the whole of a training loop but its data.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "model/refresh.h"
#include "optim/grad_sinks.h"
#include "test/model/small_model.h"

namespace loqal {

constexpr int64_t kB = 8, kRank = 4;
constexpr double kRate = 1e-2, kScale = 0.4;

struct Plan {
  int64_t rank = kRank;
  QuantFormat format = {};
  std::vector<int64_t> steps = {0};  ///< of refreshes
  bool exact = true;
  bool per_layer = false;
  RefreshMoments moments = RefreshMoments::keep;
  double eps = 1e-4;
  int64_t compensate = 5;
  DType X = DType::F32;
  double weight_decay = 0;
  bool dense_trained = true;
};

/// A batch, the same in every step unless a test changes it, cut into micro-batches.
class Batch {
 public:
  /// Of a text of kB * T + 1 ids.
  Batch(const ModelConfig& config, const std::vector<int32_t>& ids)
      : T_(config.T), tokens_(ids.begin(), ids.end() - 1), targets_(ids.begin() + 1, ids.end()) {}
  explicit Batch(const ModelConfig& config) : T_(config.T) {
    const PhiloxStream random(3, Purpose::test);
    for (int64_t i = 0; i < kB * T_; i++) {
      tokens_.push_back(int32_t(random.bits(uint64_t(i)) % uint32_t(config.V)));
      targets_.push_back(int32_t(random.bits(uint64_t(i + 7)) % uint32_t(config.V)));
    }
  }
  void ignore_targets() { targets_.assign(targets_.size(), -1); }
  double run(Model& model, StepSink& sink, int64_t parts) const {
    double nll = 0;
    const int64_t B = kB / parts;
    for (int64_t a = 0; a < parts; a++) {
      sink.begin_micro_batch(int(a));
      nll += model.forward_backward(tokens_.data() + a * B * T_, targets_.data() + a * B * T_, B,
                                    T_, 1.0f / float(kB * T_), sink);
    }
    return nll / double(kB * T_);
  }
  double evaluate(Model& model) const {
    return model.forward(tokens_.data(), targets_.data(), kB, T_) / double(kB * T_);
  }

 private:
  int64_t T_;
  std::vector<int32_t> tokens_, targets_;
};

inline ParamAccess access_of(Model& model) {
  return {&model.table(), [&model](int i) { return model.parameter(i); },
          [&model](int i) { return model.compute_copy(i); },
          [&model](int i) { return model.rule(i); }};
}

/// The same with only the matrices, or their factors, trained.
inline ParamAccess matrices_alone(Model& model) {
  ParamAccess access = access_of(model);
  access.rule = [&model](int i) {
    ParamRule rule = model.rule(i);
    const Role role = model.table()[i].role;
    rule.skip = rule.skip || (role != Role::matrix && role != Role::factor);
    return rule;
  };
  return access;
}

inline ModelOptions options_of(const Plan& s) {
  return {.B = kB,
          .X = s.X,
          .matrices = {.kind = MatrixPlan::Kind::projected,
                       .rank = s.rank,
                       .scale = kScale,
                       .format = s.format,
                       .rounding = s.format.kind == QuantFormat::Kind::int8 ? Rounding::stochastic
                                                                            : Rounding::nearest,
                       .seed = 5,
                       .exact_gradient = s.exact}};
}

inline std::vector<float> effective_matrices(Model& model) {
  std::vector<float> all;
  for (int i = 0; i < model.table().size(); i++) {
    if (model.table()[i].role != Role::matrix) continue;
    const std::vector<float> w = model.effective(i);
    all.insert(all.end(), w.begin(), w.end());
  }
  return all;
}

/// What the passes read of the trainable parameters is what is held, rounded (reports.md, Q7).
inline void expect_copies(Model& model) {
  for (int i = 0; i < model.table().size(); i++) {
    if (!model.table()[i].trainable()) continue;
    const Tensor copy = model.compute_copy(i), held = model.parameter(i);
    if (!copy) continue;
    const Buffer memory = model.ops().alloc(copy.numel() * 4, "test");
    const Tensor difference(memory.as<float>(), copy.rows, copy.cols);
    model.ops().copy(difference, copy);
    model.ops().axpby(difference, -1, held, 1);
    EXPECT_LE(model.ops().sum_squares(difference), 0x1p-16 * model.ops().sum_squares(held))
        << model.table()[i].name;
  }
}

class LoQT {
 public:
  LoQT(const ModelConfig& config, const Plan& s)
      : ops(make_cpu_ops(2)),
        model(*ops, config, options_of(s)),
        adam(*ops, s.dense_trained ? access_of(model) : matrices_alone(model),
             {.eps = s.eps, .weight_decay = s.weight_decay}),
        refresh(model, adam, {.moments = s.moments, .steps = s.steps, .compensate = s.compensate}),
        batch(config) {
    if (s.per_layer) sink = std::make_unique<PerLayerSink>(*ops, model.table(), refresh);
    else sink = std::make_unique<FullGradSink>(*ops, model.table(), refresh, 0);
    model.init_random(1);
    refresh.set_original([this](int weight) { return model.random_values(weight, 1); });
  }
  double step(int64_t parts = 1, double rate = kRate) {
    adam.begin_step(rate);
    refresh.begin_step(step_++);
    sink->begin_step();
    const double loss = batch.run(model, *sink, parts);
    sink->finish_step();
    refresh.end_step();
    return loss;
  }
  std::vector<float> effective() { return effective_matrices(model); }
  /// Every byte that is held: weights, factors, moments.
  std::vector<char> bytes() {
    std::vector<char> all;
    const auto add = [&](const Tensor& t) {
      const size_t at = all.size();
      all.resize(at + size_t(t.numel()) * size_of(t.dtype));
      ops->download(all.data() + at, t);
    };
    for (int i = 0; i < model.table().size(); i++) {
      const Param& p = model.table()[i];
      if (p.role == Role::constant) continue;
      add(model.held(i));
      if (p.trainable())
        for (const NamedState& s : adam.states(i)) add(s.tensor);
    }
    return all;
  }

  std::unique_ptr<Ops> ops;
  Model model;
  AdamW adam;
  Refresh refresh;
  Batch batch;
  std::unique_ptr<StepSink> sink;

 private:
  int64_t step_ = 0;
};

const QuantFormat kInt8 = {QuantFormat::Kind::int8, 64}, kNf4 = {QuantFormat::Kind::nf4, 64};

}  // namespace loqal
