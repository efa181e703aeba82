// Small models for tests of checkpoints and sampling.
#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "core/json.h"
#include "core/safetensors.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "optim/optimizer.h"

namespace loqal {

inline ModelConfig small_config(Arch arch, bool tied) {
  ModelConfig c;
  c.arch = arch, c.L = 2, c.C = 24, c.NH = 3, c.NKV = arch == Arch::gpt2 ? 3 : 1, c.HS = 8,
  c.F = 40;
  c.V = 37, c.T = 16, c.tied = tied;  // V = 37: 91 rows of padding
  return c;
}

/// |found - expected| / |expected|.
inline double relative(const std::vector<float>& found, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); i++) {
    difference += std::pow(double(found[i]) - double(expected[i]), 2);
    norm += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

struct SmallModel {
  explicit SmallModel(const ModelConfig& config, uint64_t seed = 1, int64_t B = 2,
                      bool training = true, DType X = DType::F32)
      : ops(make_cpu_ops(2)),
        model(*ops, config, {.B = B, .X = X, .training = training, .cache = true}),
        optimizer(*ops,
                  {&model.table(), [this](int i) { return model.parameter(i); },
                   [this](int i) { return model.compute_copy(i); }},
                  {}) {
    model.init_random(seed);
  }

  std::vector<float> host(const Tensor& t) const {
    std::vector<float> out(size_t(t.numel()));
    ops->download(out.data(), t);
    return out;
  }
  template <class F>
  void for_each(const F& f) const {
    for (int i = 0; i < model.table().size(); i++)
      if (model.table()[i].segment == Segment::trainable) f(i);
  }
  /// Parameters and moments, padding included.
  std::vector<float> all() const {
    std::vector<float> out;
    for_each([&](int i) {
      for (const Tensor& t :
           {model.parameter(i), optimizer.state("adam_m", i), optimizer.state("adam_v", i)}) {
        const std::vector<float> values = host(t);
        out.insert(out.end(), values.begin(), values.end());
      }
    });
    return out;
  }

  std::unique_ptr<Ops> ops;
  Model model;
  AdamW optimizer;
};

/// Writes a file's tensors again as F32, changed by `edit`, to `to`, or over it.
using Tensors = std::vector<std::pair<TensorInfo, std::vector<float>>>;
inline void rewrite(const std::string& path, const std::function<void(Tensors&)>& edit,
                    const std::string& to = "") {
  Tensors tensors;
  {
    const SafetensorsReader file(path);
    for (const TensorInfo& t : file.tensors()) {
      tensors.push_back({t, std::vector<float>(size_t(t.numel()))});
      read_floats(file, t.name, tensors.back().second.data());
    }
  }
  edit(tensors);
  SafetensorsWriter out(to.empty() ? path : to);
  for (const auto& [info, values] : tensors) out.declare(info.name, DType::F32, info.shape);
  for (const auto& [info, values] : tensors) out.write(values.data(), int64_t(values.size()) * 4);
  out.finish();
}

/// What plain training saves and resumes from: the model, Adam's moments and step count.
inline void save_checkpoint(const std::string& path, Model& model, const Optimizer& optimizer,
                            Json state, const TokenizerFiles& tokenizer) {
  state["adam_step"] = optimizer.step_count();
  save_checkpoint(path, model, optimizer_tensors(model, optimizer), std::move(state), tokenizer);
}
inline void load_checkpoint(const std::string& path, const Json& state, Model& model,
                            Optimizer& optimizer) {
  load_weights(path, model);
  load_state_tensors(path, optimizer_tensors(model, optimizer));
  optimizer.set_step_count(state.at("adam_step").get<int64_t>());
}

}  // namespace loqal
