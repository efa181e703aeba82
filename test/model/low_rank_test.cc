// Layers with a low-rank part: W_eff = W + U D multiplies as a dense matrix of that value does, and
// the factors' gradients are those of the product rule. Numbers from a dense model and from double
// precision; the tolerances are those of fp32 sums, some hundred units in the last place.
#include "model/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/model.h"
#include "test/model/small_model.h"

namespace loqal {
namespace {

using Kind = MatrixPlan::Kind;

/// Keeps the whole gradient.
class KeepGradients final : public GradSink {
 public:
  explicit KeepGradients(Model& model)
      : table_(model.table()),
        memory_(model.ops().alloc(table_.grad_elements() * 4, "gradients")) {}
  float* buffer(int group) override {
    return memory_.as<float>() + table_.grad_group_offset(group);
  }
  bool accumulate() const override { return accumulate_; }
  void complete(int) override {}
  Tensor operator()(int param) { return table_.gradient(param, buffer(table_[param].group)); }

  bool accumulate_ = false;

 private:
  const ParamTable& table_;
  Buffer memory_;
};

std::vector<float> host(Model& model, const Tensor& t) {
  std::vector<float> out(size_t(t.numel()));
  model.ops().download(out.data(), t);
  return out;
}

double relative_error(const std::vector<float>& found, const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); i++) {
    difference += std::pow(double(found[i]) - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

/// a [m,k] op b [k,n] in double.
std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b, int64_t m,
                            int64_t k, int64_t n) {
  std::vector<double> c(size_t(m * n));
  for (int64_t i = 0; i < m; i++)
    for (int64_t l = 0; l < k; l++)
      for (int64_t j = 0; j < n; j++)
        c[size_t(i * n + j)] += double(a[size_t(i * k + l)]) * double(b[size_t(l * n + j)]);
  return c;
}
std::vector<float> transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  std::vector<float> y(x.size());
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) y[size_t(c * rows + r)] = x[size_t(r * cols + c)];
  return y;
}

struct Case {
  Arch arch;
  Kind kind;
  DType X = DType::F32;
};

class LowRankModel : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kB = 2, kRank = 5;

  LowRankModel()
      : config_(small_config(GetParam().arch, false)),
        ops_(make_cpu_ops(2)),
        dense_(*ops_, config_, {.B = kB, .X = GetParam().X}),
        low_rank_(*ops_, config_,
                  {.B = kB,
                   .X = GetParam().X,
                   .matrices = {.kind = GetParam().kind, .rank = kRank, .scale = 0.5f}}) {
    dense_.init_random(1);
    low_rank_.init_random(1);
    for (int i = 0; i < low_rank_.table().size(); i++) {  // all factors random
      const Param& p = low_rank_.table()[i];
      if (p.role != Role::factor) continue;
      const PhiloxStream random(7, Purpose::test, 0, uint32_t(i));
      std::vector<float> values(size_t(p.numel()));
      for (size_t k = 0; k < values.size(); k++) values[k] = float(0.1 * random.normal(k));
      low_rank_.set_parameter(i, values);
    }
    for (int i = 0; i < low_rank_.table().size(); i++)
      if (low_rank_.table()[i].role == Role::matrix)
        dense_.set_parameter(dense_index(i), low_rank_.effective(i));
    low_rank_.refresh_compute_copy();
    dense_.refresh_compute_copy();
    const PhiloxStream random(3, Purpose::test);
    for (int64_t i = 0; i < kB * config_.T; i++) {
      tokens_.push_back(int32_t(random.bits(uint64_t(i)) % uint32_t(config_.V)));
      targets_.push_back(int32_t(random.bits(uint64_t(i + 1)) % uint32_t(config_.V)));
    }
  }
  int dense_index(int i) const { return dense_.table().find(low_rank_.table()[i].name); }

  void compare(int64_t B, int64_t T);

  const ModelConfig config_;
  std::unique_ptr<Ops> ops_;
  Model dense_, low_rank_;
  std::vector<int32_t> tokens_, targets_;
};

// In bf16 too the whole of a small update is seen, as far as rounding the sum to bf16 leaves it:
// simulated, 1.00 of one of 0.1 % of W (0.52 where W is rounded first).
TEST(LowRankSum, IsRoundedOnce) {
  const MatrixPlan plan = {.kind = Kind::lora, .rank = 16};
  constexpr int64_t n = 256;
  const auto ops = make_cpu_ops(2);
  ParamTable table(plan);
  const LowRank layer(table, "w", n, n, 0);
  table.commit();
  const Buffer master = ops->alloc(table.elements() * 4, "weights"),
               copy = ops->alloc(table.elements() * 2, "weights"),
               frozen = ops->alloc(table.frozen_bytes(), "weights"),
               scratch = ops->alloc(n * n * 6, "scratch");
  const auto fill = [&](const Tensor& t, double deviation, uint32_t seed) {
    const PhiloxStream random(seed, Purpose::test);
    std::vector<float> x(size_t(t.numel()));
    for (size_t i = 0; i < x.size(); i++) x[i] = float(deviation * random.normal(i));
    ops->upload(t, x.data());
    return x;
  };
  loqal::Run run{*ops, {&table, master.data(), copy.data(), frozen.data(), DType::BF16}, 1, n};
  run.low_rank.sum = Tensor(scratch.as<float>(), n, n);
  run.low_rank.weight = Tensor(scratch.as<float>() + n * n, DType::BF16, n, n);
  const std::vector<float> w = fill(table.frozen(0, frozen.data()), 1, 1),
                           u = fill(table.view(1, master.data(), DType::F32), 1e-3, 2),
                           d = fill(table.view(2, master.data(), DType::F32), 0.25, 3);
  for (int i = 1; i <= 2; i++)
    ops->copy(table.view(i, copy.data(), DType::BF16), table.view(i, master.data(), DType::F32));
  std::vector<bf16> got(size_t(n * n));
  ops->download(got.data(), layer.effective(run));
  const std::vector<double> update = product(u, d, n, 16, n);
  double seen = 0, norm = 0;
  for (size_t i = 0; i < got.size(); i++) {
    seen += (double(to_float(got[i])) - double(w[i])) * update[i];
    norm += update[i] * update[i];
  }
  EXPECT_NEAR(std::sqrt(norm) / double(n), 1e-3, 1e-4);
  EXPECT_NEAR(seen / norm, 1, 0.1);
}

void LowRankModel::compare(int64_t B, int64_t T) {
  const bool bf16 = GetParam().X == DType::BF16;
  const double close = bf16 ? 0.03 : 2e-5;
  KeepGradients expected(dense_), found(low_rank_);
  const float scale = 1.0f / float(B * T);
  const double loss =
      dense_.forward_backward(tokens_.data(), targets_.data(), B, T, scale, expected);
  EXPECT_NEAR(low_rank_.forward_backward(tokens_.data(), targets_.data(), B, T, scale, found), loss,
              (bf16 ? 3e-3 : 1e-6) * loss);
  const ParamTable& table = low_rank_.table();
  for (int i = 0; i < table.size(); i++) {
    const Param& p = table[i];
    if (!p.trainable()) continue;
    if (p.role != Role::factor) {
      const std::vector<float> g = host(dense_, expected(dense_index(i)));
      if (p.name.ends_with("c_attn.bias")) continue;  // the keys' third is zero but for rounding
      EXPECT_LE(relative_error(host(low_rank_, found(i)), {g.begin(), g.end()}), close) << p.name;
      continue;
    }
    const bool up = table[i - 1].role == Role::matrix;  // W, U, D
    const int w = up ? i - 1 : i - 2;
    const int64_t out = table[w].rows(), in = table[w].cols(), R = table[w + 1].cols();
    const std::vector<float> g = host(dense_, expected(dense_index(w)));
    std::vector<float> other(size_t(table[up ? w + 2 : w + 1].numel()));
    const Buffer memory = ops_->alloc(int64_t(other.size()) * 4, "test");
    const int o = up ? w + 2 : w + 1;
    const Tensor view(memory.as<float>(), table[o].rows(), table[o].cols());
    low_rank_.read(o, view);
    ops_->download(other.data(), view);
    // dU = G D^T, dD = U^T G.
    const std::vector<double> closed = up ? product(g, transposed(other, R, in), out, in, R)
                                          : product(transposed(other, out, R), g, R, out, in);
    EXPECT_LE(relative_error(host(low_rank_, found(i)), closed), close) << p.name;
  }
}

// More rows than out * in / (out + in): W_eff is formed. Fewer: the factors meet the activations.
TEST_P(LowRankModel, EqualsTheDenseModelOfItsEffectiveWeights) {
  compare(kB, config_.T);
  compare(1, 4);
}

TEST_P(LowRankModel, DenseTensorsStartAsInTheDenseModel) {
  Model fresh(*ops_, config_, {});
  fresh.init_random(1);
  low_rank_.init_random(1);
  for (int i = 0; i < low_rank_.table().size(); i++)
    if (low_rank_.table()[i].role != Role::factor && low_rank_.table()[i].role != Role::constant) {
      EXPECT_EQ(low_rank_.effective(i), fresh.effective(dense_index(i)))
          << low_rank_.table()[i].name << ": U D must start as 0";
    }
}

TEST_P(LowRankModel, WhatIsTrainedAndOnWhichSide) {
  const ParamTable& table = low_rank_.table();
  for (int i = 0; i < table.size(); i++) {
    const Param& p = table[i];
    if (p.role != Role::matrix) continue;
    EXPECT_FALSE(p.trainable()) << p.name;
    const Param &u = table[i + 1], &d = table[i + 2];
    EXPECT_EQ(u.shape, (std::vector<int64_t>{p.rows(), kRank}));
    EXPECT_EQ(d.shape, (std::vector<int64_t>{kRank, p.cols()}));
    if (GetParam().kind == Kind::lora) {
      EXPECT_TRUE(u.trainable() && d.trainable());
      EXPECT_EQ(d.name, p.name + ".A");
    } else {  // Q13: the frozen basis is on the smaller side, a square matrix's on the input side
      EXPECT_EQ(d.trainable(), p.cols() > p.rows()) << p.name;
      EXPECT_EQ(u.trainable(), p.cols() <= p.rows()) << p.name;
      EXPECT_EQ((u.trainable() ? u : d).name, p.name + ".B");
      EXPECT_EQ((u.trainable() ? d : u).name, p.name + ".P");
    }
    EXPECT_FALSE(u.decays() || d.decays());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LowRankModel,
                         ::testing::Values(Case{Arch::llama, Kind::projected},
                                           Case{Arch::gpt2, Kind::projected},
                                           Case{Arch::llama, Kind::lora},
                                           Case{Arch::llama, Kind::projected, DType::BF16}),
                         [](const auto& info) {
                           return std::string(info.param.arch == Arch::gpt2 ? "gpt2" : "llama") +
                                  (info.param.kind == Kind::lora ? "_lora" : "_projected") +
                                  (info.param.X == DType::BF16 ? "_bf16" : "");
                         });

TEST(LowRankRank, IsAtMostTheSmallerSide) {
  const auto ops = make_cpu_ops(1, true);
  const ModelConfig config = small_config(Arch::llama, false);
  const Model model(*ops, config, {.matrices = {.kind = Kind::projected, .rank = 1000}});
  for (const LowRankParams& m : low_rank_params(model.table(), 1)) {
    const Param& w = model.table()[m.weight];
    EXPECT_EQ(model.table()[m.weight + 1].cols(), std::min(w.rows(), w.cols())) << w.name;
  }
  EXPECT_EQ(low_rank_params(model.table(), 1).size(), 7u);
}

}  // namespace
}  // namespace loqal
