// GaLore against its identity: with alpha = s it is LoQT without quantization, Adam on B with
// G_B = s G P^T and eps s times as large, W = W0 + s B P, as long as P stays.
#include "optim/galore.h"
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

constexpr double kScale = 0.25;

struct Settings {
  int bits = 32;
  bool sketch = true;
  int64_t interval = 100, rank = 8;
  double decay = 0;
};

struct Task {
  Task(Ops& ops_, int64_t rows, int64_t cols, const Settings& setup)
      : ops(ops_),
        target(normal(rows, cols, 2)),
        w(ops, DType::F32, normal(rows, cols, 1)),
        copy(ops, DType::BF16, rows, cols) {
    table.add("w", {rows, cols}, 0, Role::matrix);
    table.add("n", {cols}, 0, Role::norm);
    table.commit();
    vector = ops.alloc(cols * 4, "test");
    gradient = ops.alloc(table.elements() * 4, "test");
    optimizer = std::make_unique<GaLore>(
        ops,
        ParamAccess{
            &table,
            [this, cols](int i) { return i == 0 ? w.out() : Tensor(vector.as<float>(), 1, cols); },
            [this](int i) { return i == 0 ? copy.out() : Tensor(); }},
        GaLoreConfig{.adam = {.eps = 1e-8, .weight_decay = setup.decay, .bits = setup.bits},
                     .rank = setup.rank,
                     .scale = kScale,
                     .schedule = {.interval = setup.interval, .growth = 0, .steps = 1000},
                     .sketch = setup.sketch,
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
  double loss() const {
    double sum = 0;
    for (const double g : loss_gradient().v) sum += g * g;
    return sum / 2;
  }
  void step(double lr, double grad_scale = 1) {
    const Mat<double> g = loss_gradient();
    std::vector<float> host(size_t(table.elements()), 0.0f);
    std::copy(g.v.begin(), g.v.end(), host.begin() + table[0].offset);
    ops.upload({gradient.as<float>(), 1, int64_t(host.size())}, host.data());
    optimizer->begin_step(lr);
    optimizer->update(0, gradient.as<float>(), grad_scale);
  }
  // Directions as rows, whichever side they are on.
  Mat<double> directions() const {
    const Tensor basis = optimizer->state("galore_p", 0);
    std::vector<float> host(size_t(basis.numel()));
    ops.download(host.data(), basis);
    const bool rows = w.in().rows >= w.in().cols;
    Mat<double> d(rows ? basis.rows : basis.cols, rows ? basis.cols : basis.rows);
    for (int64_t r = 0; r < d.rows; r++)
      for (int64_t j = 0; j < d.cols; j++)
        d(r, j) = double(host[size_t(rows ? r * d.cols + j : j * d.rows + r)]);
    return d;
  }
  Ops& ops;
  Mat<double> target;
  Array w, copy;
  Buffer vector, gradient;
  ParamTable table;
  std::unique_ptr<GaLore> optimizer;
  std::vector<int64_t> gaps;
  double energy = 0;
};

TEST(GaLore, IsAdamOnTheFactorBetweenRefreshes) {
  Ops& ops = shared_ops(0);
  const double s = kScale;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{48, 24}, {24, 48}}) {
    Task task(ops, rows, cols, {});
    const Mat<double> start = task.w.after();
    Mat<double> W = start;
    task.step(1e-2);
    const FactorShape shape{rows, cols, 8};
    const bool left = shape.side() == Side::left;
    const Mat<double> P = task.directions();
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

// W = (1 - lr wd) W - lr alpha N P in double, N from clipped gradients; the copy is W rounded.
TEST(GaLore, DecayClippingAndTheCopyInDouble) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{48, 24}, {24, 48}}) {
    Task task(shared_ops(0), rows, cols, {.decay = 0.5});
    const bool left = rows >= cols;
    const int64_t m = std::max(rows, cols), n = std::min(rows, cols);
    Mat<double> W = task.w.after(), P, mo(m, 8), vo(m, 8);
    for (int64_t t = 1; t <= 10; t++) {
      const double clip = t % 3 == 0 ? 0.01 : 0.5;  // one for all steps would cancel
      task.step(1e-2, clip);
      if (t == 1) P = task.directions();
      const Mat<double> before = W;
      for (double& w : W.v) w -= 1e-2 * 0.5 * w;
      for (int64_t i = 0; i < m; i++)
        for (int64_t r = 0; r < 8; r++) {
          const auto at = [&](int64_t j) { return size_t(left ? i * cols + j : j * cols + i); };
          double g = 0, step = 0;
          for (int64_t j = 0; j < n; j++) g += (before.v[at(j)] - task.target.v[at(j)]) * P(r, j);
          ref_adamw(step, mo(i, r), vo(i, r), g, {1e-2, 0.9, 0.95, 1e-8, 0, clip}, t);
          for (int64_t j = 0; j < n; j++) W.v[at(j)] += kScale * step * P(r, j);
        }
      const Mat<double> got = task.w.after();
      for (size_t i = 0; i < W.v.size(); i++) ASSERT_NEAR(got.v[i], W.v[i], 2e-6) << t;
      expect_equal(task.copy.after(), round_to(DType::BF16, got), "copy");
    }
  }
}

Mat<double> transposed(const Mat<double>& x) {
  Mat<double> t(x.cols, x.rows);
  for (int64_t i = 0; i < x.rows; i++)
    for (int64_t j = 0; j < x.cols; j++) t(j, i) = x(i, j);
  return t;
}

// reports.md Q13: tall, wide and square, any rank: the basis is on the smaller side, a step goes
// down, and the transposed problem has the transposed solution.
TEST(GaLore, AnyShapeAndRank) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{48, 24}, {24, 48}, {24, 24}})
    for (const int64_t rank : {1, 5, 24, 100}) {
      SCOPED_TRACE(cat(rows, "x", cols, ", rank ", rank));
      const Settings setup{.sketch = false, .rank = rank};
      Task task(shared_ops(0), rows, cols, setup), mirror(shared_ops(0), cols, rows, setup);
      mirror.target = transposed(task.target);
      mirror.w.set(transposed(task.w.after()));
      const double before = task.loss();
      for (int t = 0; t < 3; t++) task.step(1e-2), mirror.step(1e-2);
      EXPECT_LT(task.loss(), before);
      EXPECT_EQ(task.directions().rows, std::min<int64_t>(rank, 24));
      EXPECT_EQ(task.directions().cols, 24);
      const Mat<double> other = transposed(mirror.w.after()), w = task.w.after();
      for (size_t i = 0; i < w.v.size() && rows != cols; i++)
        ASSERT_NEAR(other.v[i], w.v[i], 1e-5) << i;
    }
}

// New subspaces let it reach what one of them cannot; in 8 bits, with an exact basis, as well.
TEST(GaLore, RefreshesReachTheTarget) {
  for (const bool sketch : {true, false})
    for (const int bits : {32, 8}) {
      // R has 4,800 elements.
      Task task(shared_ops(0), 600, 24, {.bits = bits, .sketch = sketch, .interval = 20});
      const double before = task.loss();
      for (int t = 0; t < 120; t++) task.step(0.3);
      EXPECT_LT(task.loss(), 0.1 * before) << sketch << bits;
      EXPECT_EQ(task.gaps, (std::vector<int64_t>{0, 20, 20, 20, 20, 20}));
      EXPECT_GT(task.energy, 0);
    }
}

}  // namespace
}  // namespace loqal::test
