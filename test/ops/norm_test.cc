// layernorm and rmsnorm.
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(NormTest);

constexpr float kEps = 1e-5f;

// Rows x columns: one row, ragged rows, widths around every vector length.
const std::pair<int64_t, int64_t> kSizes[] = {{1, 1},    {3, 5},   {7, 33},   {65, 16},
                                              {130, 20}, {9, 768}, {2100, 12}};

TEST_P(NormTest, LayerNormForward) {
  for (const auto& [N, C] : kSizes) {
    SCOPED_TRACE(cat(N, "x", C));
    Mat<double> xv = normal(N, C, 1, 1.5);
    for (double& x : xv.v) x += 0.5;
    Array x(ops, X, xv, C % 3), w(ops, DType::F32, normal(1, C, 2)),
        b(ops, DType::F32, normal(1, C, 3));
    Array y(ops, X, N, C, C % 2 * 5), stats(ops, DType::F32, 2, N);
    ops.layernorm_forward(y.out(), stats.out(), x.in(), w.in(), b.in(), kEps);
    const auto want = ref_layernorm(x.before(), w.before(), b.before(), double(kEps), u);
    expect_close(y.after(), want.y, "y");
    expect_close(stats.after(), want.stats, "stats");
  }
}

TEST_P(NormTest, RmsNormForward) {
  for (const auto& [N, C] : kSizes) {
    SCOPED_TRACE(cat(N, "x", C));
    Array x(ops, X, normal(N, C, 1, 1.5), C % 3), w(ops, DType::F32, normal(1, C, 2));
    Array y(ops, X, N, C, C % 2 * 5), stats(ops, DType::F32, 1, N);
    ops.rmsnorm_forward(y.out(), stats.out(), x.in(), w.in(), kEps);
    const auto want = ref_rmsnorm(x.before(), w.before(), double(kEps), u);
    expect_close(y.after(), want.y, "y");
    expect_close(stats.after(), want.stats, "stats");
  }
}

/// centered: layernorm; otherwise rmsnorm, which has no db and one row of statistics.
void check_backward(Ops& ops, DType X, bool centered, int64_t N, int64_t C, bool acc_dx,
                    bool acc_dw) {
  SCOPED_TRACE(cat(N, "x", C, " accumulate dx ", acc_dx, " dw ", acc_dw));
  const double u = X == DType::BF16 ? kRoundBF16 : kRoundF32;
  Array x(ops, X, normal(N, C, 1, 1.5), C % 3), w(ops, DType::F32, normal(1, C, 2));
  Array dy(ops, X, normal(N, C, 3), C % 2);
  const Mat<Err> zero(1, C);
  const Mat<Err> exact = centered
                             ? ref_layernorm(x.before(), w.before(), zero, double(kEps), u).stats
                             : ref_rmsnorm(x.before(), w.before(), double(kEps), u).stats;
  Mat<double> stats_values(exact.rows, exact.cols);
  for (size_t i = 0; i < exact.v.size(); i++) stats_values.v[i] = exact.v[i].v;
  Array stats(ops, DType::F32, stats_values);

  Array dx(ops, X, N, C, C % 2 * 3), dw(ops, DType::F32, 1, C), db(ops, DType::F32, 1, C);
  if (acc_dx) dx.set(normal(N, C, 4));
  if (acc_dw) dw.set(normal(1, C, 5)), db.set(normal(1, C, 6));
  if (centered)
    ops.layernorm_backward(dx.out(), dw.out(), db.out(), dy.in(), x.in(), w.in(), stats.in(),
                           acc_dx, acc_dw);
  else
    ops.rmsnorm_backward(dx.out(), dw.out(), dy.in(), x.in(), w.in(), stats.in(), acc_dx, acc_dw);

  // The statistics are inputs here: their rounding is no error of the backward pass.
  const auto want =
      ref_norm_backward(dy.before(), x.before(), w.before(), stats.before(), centered, u);
  expect_close(dx.after(), acc_dx ? ref_add(want.dx, dx.before(), u) : want.dx, "dx");
  expect_close(dw.after(), acc_dw ? ref_add(want.dw, dw.before(), kRoundF32) : want.dw, "dw");
  if (centered)
    expect_close(db.after(), acc_dw ? ref_add(want.db, db.before(), kRoundF32) : want.db, "db");
}

TEST_P(NormTest, LayerNormBackward) {
  for (const auto& [N, C] : kSizes)
    for (int flags = 0; flags < 4; flags++)
      check_backward(ops, X, true, N, C, flags & 1, flags & 2);
}

TEST_P(NormTest, RmsNormBackward) {
  for (const auto& [N, C] : kSizes)
    for (int flags = 0; flags < 4; flags++)
      check_backward(ops, X, false, N, C, flags & 1, flags & 2);
}

// A large common offset must not destroy the variance (E[x^2] - mean^2 would).
TEST_P(NormTest, LayerNormOfAnOffsetRow) {
  Mat<double> xv = normal(4, 64, 1);
  for (double& x : xv.v) x += 1000;
  Array x(ops, X, xv), w(ops, DType::F32, Mat<double>(1, 64, 1.0)),
      b(ops, DType::F32, Mat<double>(1, 64));
  Array y(ops, X, 4, 64), stats(ops, DType::F32, 2, 4);
  ops.layernorm_forward(y.out(), stats.out(), x.in(), w.in(), b.in(), kEps);
  const auto want = ref_layernorm(Mat<double>(x.after()), Mat<double>(1, 64, 1.0),
                                  Mat<double>(1, 64), double(kEps), 0);
  // Rounding of the mean to fp32 (3e-5 at 1000) shifts it by at most that and is second order in
  // the variance.
  for (int64_t n = 0; n < 4; n++) EXPECT_NEAR(stats.after()(1, n) / want.stats(1, n), 1, 1e-5);
}

// A row of zeros has variance 0: eps keeps it finite.
TEST_P(NormTest, ConstantRow) {
  Array x(ops, X, Mat<double>(2, 24)), w(ops, DType::F32, normal(1, 24, 1)),
      b(ops, DType::F32, normal(1, 24, 2));
  Array y(ops, X, 2, 24), stats(ops, DType::F32, 2, 2), stats1(ops, DType::F32, 1, 2);
  ops.layernorm_forward(y.out(), stats.out(), x.in(), w.in(), b.in(), kEps);
  expect_close(y.after(), ref_layernorm(x.before(), w.before(), b.before(), double(kEps), u).y,
               "layernorm");
  ops.rmsnorm_forward(y.out(), stats1.out(), x.in(), w.in(), kEps);
  expect_close(y.after(), ref_rmsnorm(x.before(), w.before(), double(kEps), u).y, "rmsnorm");
}

}  // namespace
}  // namespace loqal::test
