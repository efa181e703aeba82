// Parity with PyTorch: loss, every gradient, and parameters after three AdamW steps of three small
// models, against float64 golden files (test/golden/make_golden.py).
#include <gtest/gtest.h>

#include <cmath>

#include "core/safetensors.h"
#include "model/model.h"
#include "optim/grad_sinks.h"

namespace loqal {
namespace {

class Golden {
 public:
  explicit Golden(const std::string& name) : file_("test/golden/" + name + ".safetensors") {}

  ModelConfig config() const {
    ModelConfig c;
    c.arch = text("arch") == "gpt2" ? Arch::gpt2 : Arch::llama;
    c.L = number("L"), c.C = number("C"), c.NH = number("NH"), c.HS = number("HS"),
    c.F = number("F");
    c.NKV = has("NKV") ? number("NKV") : c.NH;
    c.V = number("V"), c.T = has("Tmax") ? number("Tmax") : number("T"),
    c.tied = number("tied") == 1;
    c.norm_eps = std::stof(text("norm_eps"));
    return c;
  }
  bool has(const std::string& key) const { return file_.metadata().count(key) > 0; }
  int64_t number(const std::string& key) const { return std::stoll(text(key)); }
  double real(const std::string& key) const { return std::stod(text(key)); }
  std::string text(const std::string& key) const { return file_.metadata().at(key); }
  std::vector<int32_t> ints(const std::string& name) const {
    const auto* p = static_cast<const int32_t*>(file_.data(name));
    return {p, p + file_.info(name).numel()};
  }
  std::vector<double> doubles(const std::string& name) const {
    const auto* p = static_cast<const double*>(file_.data(name));
    return {p, p + file_.info(name).numel()};
  }
  std::vector<float> floats(const std::string& name) const {
    std::vector<float> out(size_t(file_.info(name).numel()));
    read_floats(file_, name, out.data());
    return out;
  }

 private:
  SafetensorsReader file_;
};

// Keeps the whole gradient, so that a test can look at it.
class KeepGradients final : public GradSink {
 public:
  explicit KeepGradients(Model& model)
      : table_(model.table()),
        memory_(model.ops().alloc(table_.grad_elements() * 4, "gradients")) {}
  float* buffer(int group) override {
    return memory_.as<float>() + table_.grad_group_offset(group);
  }
  bool accumulate() const override { return accumulate_; }
  void complete(int group) override { completed.push_back(group); }
  Tensor operator()(int param) const { return table_.view(param, memory_.data(), DType::F32); }

  bool accumulate_ = false;
  std::vector<int> completed;

 private:
  const ParamTable& table_;
  Buffer memory_;
};

double relative_error(const std::vector<float>& found, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); i++) {
    difference += (double(found[i]) - expected[i]) * (double(found[i]) - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

class Parity : public ::testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  void SetUp() override {
    golden_ = std::make_unique<Golden>(std::get<0>(GetParam()));
    ops_ = make_cpu_ops(2);
    B_ = golden_->number("B"), T_ = golden_->number("T");
    model_ = std::make_unique<Model>(*ops_, golden_->config(),
                                     ModelOptions{.B = B_, .recompute = std::get<1>(GetParam())});
    tokens_ = golden_->ints("tokens"), targets_ = golden_->ints("targets");
    for (int32_t t : targets_) count_ += t >= 0;
    for (int i = 0; i < model_->table().size(); i++) {
      if (model_->table()[i].segment == Segment::frozen) continue;
      std::vector<float> host(size_t(model_->table()[i].numel()), 0.0f);
      const std::vector<float> param = golden_->floats("param." + model_->table()[i].name);
      std::copy(param.begin(), param.end(), host.begin());
      ops_->upload(model_->parameter(i), host.data());
    }
    model_->refresh_compute_copy();
  }

  std::vector<float> host(const Tensor& t, int param) {
    std::vector<float> out(size_t(t.numel()));
    ops_->download(out.data(), t);
    out.resize(size_t(model_->real_rows(param) * t.cols));
    return out;
  }
  // GPT-2's key bias has a true gradient of zero: the middle third of c_attn.bias.
  bool is_qkv_bias(int i) const { return model_->table()[i].name.ends_with("c_attn.bias"); }

  std::unique_ptr<Golden> golden_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_, targets_;
  int64_t B_ = 0, T_ = 0;
  int count_ = 0;
};

TEST_P(Parity, LossAndEveryGradient) {
  KeepGradients grads(*model_);
  const double sum = model_->forward_backward(tokens_.data(), targets_.data(), B_, T_,
                                              1.0f / float(count_), grads);
  const double expected = golden_->doubles("loss")[0];
  EXPECT_NEAR(sum / count_, expected, 1e-5 * expected);
  EXPECT_NEAR(model_->forward(tokens_.data(), targets_.data(), B_, T_) / count_, expected,
              1e-5 * expected);
  for (int i = 0; i < model_->table().size(); i++) {
    const Param& p = model_->table()[i];
    if (p.segment == Segment::frozen) continue;
    std::vector<float> found = host(grads(i), i);
    std::vector<double> grad = golden_->doubles("grad." + p.name);
    if (is_qkv_bias(i))
      for (size_t k = grad.size() / 3; k < 2 * grad.size() / 3; k++) {
        EXPECT_LT(std::abs(found[k]), 1e-6) << p.name << " key " << k;
        found[k] = 0, grad[k] = 0;
      }
    EXPECT_LE(relative_error(found, grad), 1e-5) << p.name;
  }
  // The head first, the embedding last: what per-layer updates rely on.
  ASSERT_EQ(int(grads.completed.size()), model_->groups());
  for (int g = 0; g < model_->groups(); g++)
    EXPECT_EQ(grads.completed[size_t(g)], model_->groups() - 1 - g);
}

TEST_P(Parity, PaddingOfTheVocabularyGetsNoGradient) {
  KeepGradients grads(*model_);
  model_->forward_backward(tokens_.data(), targets_.data(), B_, T_, 1.0f, grads);
  for (int i = 0; i < model_->table().size(); i++) {
    const Param& p = model_->table()[i];
    if (p.role != Role::embedding && p.role != Role::head) continue;
    ASSERT_GT(p.rows(), model_->real_rows(i));
    const Tensor padding =
        grads(i).row_slice(model_->real_rows(i), p.rows() - model_->real_rows(i));
    EXPECT_EQ(ops_->sum_squares(padding), 0.0) << p.name;
  }
}

TEST_P(Parity, ParametersAfterThreeAdamWSteps) {
  AdamW optimizer(*ops_,
                  {&model_->table(), [&](int i) { return model_->parameter(i); },
                   [&](int i) { return model_->compute_copy(i); }},
                  {.beta1 = golden_->real("beta1"),
                   .beta2 = golden_->real("beta2"),
                   .eps = golden_->real("adam_eps"),
                   .weight_decay = golden_->real("weight_decay")});
  FullGradSink sink(*ops_, model_->table(), optimizer, golden_->real("grad_clip"));
  const std::vector<double> losses = golden_->doubles("losses"),
                            norms = golden_->doubles("grad_norms");
  for (size_t step = 0; step < 3; step++) {
    optimizer.begin_step(golden_->real("lr"));
    sink.begin_micro_batch(0);
    const double sum = model_->forward_backward(tokens_.data(), targets_.data(), B_, T_,
                                                1.0f / float(count_), sink);
    EXPECT_NEAR(sum / count_, losses[step], 1e-5 * losses[step]);
    EXPECT_NEAR(sink.finish_step().grad_norm, norms[step], 1e-5 * norms[step]);
  }
  for (int i = 0; i < model_->table().size(); i++) {
    const Param& p = model_->table()[i];
    if (p.segment == Segment::frozen) continue;
    std::vector<float> found = host(model_->parameter(i), i);
    std::vector<double> after = golden_->doubles("after." + p.name);
    // Adam turns the key bias's gradient, which is rounding noise around zero, into steps of size
    // lr.
    if (is_qkv_bias(i))
      for (size_t k = after.size() / 3; k < 2 * after.size() / 3; k++) found[k] = 0, after[k] = 0;
    EXPECT_LE(relative_error(found, after), 1e-5) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Parity,
                         ::testing::Combine(::testing::Values("gpt2_small", "llama_small",
                                                              "llama_tied"),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_recompute" : "");
                         });

}  // namespace
}  // namespace loqal
