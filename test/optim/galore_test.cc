// GaLore against its identity: with alpha = s it is LoQT without quantization, Adam on B with
// G_B = s G P^T and eps s times as large, W = W0 + s B P, as long as P stays.
#include "optim/galore.h"
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

struct Task {
  Task(Ops& ops_, int64_t rows, int64_t cols, int bits, bool sketch, int64_t interval = 100)
      : ops(ops_), target(normal(rows, cols, 2)), w(ops, DType::F32, normal(rows, cols, 1)) {
    table.add("w", {rows, cols}, 0, Role::matrix);
    table.add("n", {cols}, 0, Role::norm);
    table.commit();
    vector = ops.alloc(cols * 4, "test");
    gradient = ops.alloc(table.elements() * 4, "test");
    optimizer = std::make_unique<GaLore>(
        ops,
        ParamAccess{&table,
                    [this, cols](int i) {
                      return i == 0 ? w.out() : Tensor(vector.as<float>(), 1, cols);
                    },
                    [](int) { return Tensor(); }},
        GaLoreConfig{.adam = {.eps = 1e-8, .weight_decay = 0, .bits = bits},
                     .rank = 8,
                     .scale = 0.25,
                     .schedule = {.interval = interval, .growth = 0, .steps = 1000},
                     .sketch = sketch,
                     .projected = [this](int i) { return table[i].shape.size() == 2; },
                     .on_refresh =
                         [this](int, int64_t gap, const BasisReport& r) {
                           gaps.push_back(gap), energy = r.energy;
                         }});
  }
  // Of |W - T|^2 / 2.
  Mat<double> loss_gradient() const {
    Mat<double> g = w.after();
    for (size_t i = 0; i < g.v.size(); i++) g.v[i] -= target.v[i];
    return g;
  }
  void step(double lr) {
    const Mat<double> g = loss_gradient();
    std::vector<float> host(size_t(table.elements()), 0.0f);
    std::copy(g.v.begin(), g.v.end(), host.begin() + table[0].offset);
    ops.upload({gradient.as<float>(), 1, int64_t(host.size())}, host.data());
    optimizer->begin_step(lr);
    optimizer->update(0, gradient.as<float>(), 1);
  }
  Ops& ops;
  Mat<double> target;
  Array w;
  Buffer vector, gradient;
  ParamTable table;
  std::unique_ptr<GaLore> optimizer;
  std::vector<int64_t> gaps;
  double energy = 0;
};

TEST(GaLore, IsAdamOnTheFactorBetweenRefreshes) {
  Ops& ops = shared_ops(0);
  const double s = 0.25;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{48, 24}, {24, 48}}) {
    Task task(ops, rows, cols, 32, true);
    const Mat<double> start = task.w.after();
    Mat<double> W = start;
    task.step(1e-2);
    const FactorShape shape{rows, cols, 8};
    const Tensor basis = task.optimizer->state("galore_p", 0);
    std::vector<float> host(size_t(basis.numel()));
    ops.download(host.data(), basis);
    const bool left = shape.side() == Side::left;
    const auto P = [&](int64_t r, int64_t j) {  // direction r, its entry j
      return double(left ? host[size_t(r * cols + j)] : host[size_t(j * 8 + r)]);
    };
    const int64_t m = shape.m(), n = shape.n();
    Mat<double> B(m, 8), mo(m, 8), vo(m, 8);
    const RefAdamW adam{1e-2, 0.9, 0.95, s * 1e-8, 0, 1};
    for (int64_t t = 1; t <= 10; t++) {
      if (t > 1) task.step(1e-2);
      for (int64_t i = 0; i < m; i++)
        for (int64_t r = 0; r < 8; r++) {
          double g = 0;
          for (int64_t j = 0; j < n; j++) {
            const size_t at = size_t(left ? i * cols + j : j * cols + i);
            g += s * (W.v[at] - task.target.v[at]) * P(r, j);
          }
          ref_adamw(B(i, r), mo(i, r), vo(i, r), g, adam, t);
        }
      for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
          const size_t at = size_t(left ? i * cols + j : j * cols + i);
          W.v[at] = start.v[at];
          for (int64_t r = 0; r < 8; r++) W.v[at] += s * B(i, r) * P(r, j);
        }
      const Mat<double> got = task.w.after();
      for (size_t i = 0; i < W.v.size(); i++) ASSERT_NEAR(got.v[i], W.v[i], 2e-6) << t;
    }
    EXPECT_EQ(task.gaps, std::vector<int64_t>{0});
  }
}

// New subspaces let it reach what one of them cannot; in 8 bits, with an exact basis, as well.
TEST(GaLore, RefreshesReachTheTarget) {
  for (const bool sketch : {true, false})
    for (const int bits : {32, 8}) {
      Task task(shared_ops(0), 600, 24, bits, sketch, 20);  // R: 4,800 elements
      const auto loss = [&] {
        double sum = 0;
        for (const double g : task.loss_gradient().v) sum += g * g;
        return sum;
      };
      const double before = loss();
      for (int t = 0; t < 120; t++) task.step(0.3);
      EXPECT_LT(loss(), 0.1 * before) << sketch << bits;
      EXPECT_EQ(task.gaps, (std::vector<int64_t>{0, 20, 20, 20, 20, 20}));
      EXPECT_GT(task.energy, 0);
    }
}

}  // namespace
}  // namespace loqal::test
