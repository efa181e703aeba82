// linear_cross_entropy: the chunked output projection with its loss and gradients.
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(LossTest);

struct Case {
  int64_t N, C, V, scratch_rows;
};

void check(Ops& ops, DType X, const Case& k, const Ids& ids, bool gradients, bool accumulate,
           double x_scale) {
  SCOPED_TRACE(cat("N=", k.N, " C=", k.C, " V=", k.V, " scratch ", k.scratch_rows,
                   gradients ? " gradients" : "", accumulate ? " accumulate" : ""));
  const double u = X == DType::BF16 ? kRoundBF16 : kRoundF32;
  const float scale = 0.25f;
  Array x(ops, X, normal(k.N, k.C, 1, x_scale), k.C % 3), w(ops, X, normal(k.V, k.C, 2)),
      targets(ops, ids);
  Array scratch(ops, DType::F32, k.scratch_rows, k.V), nll(ops, DType::F32, 1, k.N);
  Array dx(ops, X, k.N, k.C, k.C % 2), dw(ops, DType::F32, k.V, k.C);
  if (accumulate) dw.set(normal(k.V, k.C, 3));
  ops.linear_cross_entropy(nll.out(), gradients ? dx.out() : Tensor{},
                           gradients ? dw.out() : Tensor{}, x.in(), w.in(), targets.in(),
                           scratch.out(), scale, accumulate);
  const auto want =
      ref_linear_cross_entropy(x.before(), w.before(), ids, double(scale), gradients, u);
  expect_close(nll.after(), want.nll, "nll");
  if (!gradients) return;
  expect_close(dx.after(), want.dx, "dx");
  expect_close(dw.after(), accumulate ? ref_add(want.dw, dw.before(), kRoundF32) : want.dw, "dw");
}

TEST_P(LossTest, ForwardAndGradients) {
  const Case cases[] = {{1, 1, 3, 1},      {5, 5, 3, 2},     {7, 33, 61, 7},  {65, 33, 61, 16},
                        {66, 20, 61, 100}, {9, 33, 1000, 4}, {3, 8, 3001, 2}, {3, 8, 8209, 3}};
  for (const Case& k : cases)
    for (int flags = 0; flags < 4; flags++)
      check(ops, X, k, random_ids(k.N, k.V, 4, true), flags & 1, flags == 3, 1);
}

TEST_P(LossTest, AllTargetsIgnored) {
  for (const bool accumulate : {false, true})
    check(ops, X, {6, 12, 61, 4}, Ids(6, -1), true, accumulate, 1);  // dw = 0, dx = 0
}

// Logits of +-1e4: exp overflows at 88.
TEST_P(LossTest, LargeLogits) {
  check(ops, X, {20, 16, 61, 8}, random_ids(20, 61, 4, true), true, false, 2.5e3);
  Array x(ops, X, normal(20, 16, 1, 2.5e3)), w(ops, X, normal(61, 16, 2)),
      targets(ops, random_ids(20, 61, 4));
  Array scratch(ops, DType::F32, 8, 61), nll(ops, DType::F32, 1, 20);
  ops.linear_cross_entropy(nll.out(), {}, {}, x.in(), w.in(), targets.in(), scratch.out(), 1,
                           false);
  for (const double v : nll.after().v) ASSERT_TRUE(std::isfinite(v) && v >= 0) << v;
}

// The size of the scratch is a matter of memory, not of results.
TEST_P(LossTest, ScratchRowsDoNotMatter) {
  const int64_t N = 37, C = 24, V = 61;
  const Ids ids = random_ids(N, V, 4, true);
  Array x(ops, X, normal(N, C, 1)), w(ops, X, normal(V, C, 2)), targets(ops, ids);
  Mat<double> first_nll;
  for (const int64_t rows : {1, 2, 5, 16, 36, 37, 64}) {
    SCOPED_TRACE(rows);
    Array scratch(ops, DType::F32, rows, V), nll(ops, DType::F32, 1, N), dx(ops, X, N, C),
        dw(ops, DType::F32, V, C);
    ops.linear_cross_entropy(nll.out(), dx.out(), dw.out(), x.in(), w.in(), targets.in(),
                             scratch.out(), 1, false);
    if (rows == 1) first_nll = nll.after();
    const auto want = ref_linear_cross_entropy(x.before(), w.before(), ids, 1, true, u);
    expect_close(nll.after(), want.nll, "nll");
    expect_close(dx.after(), want.dx, "dx");
    expect_close(dw.after(), want.dw, "dw");
    // Libraries choose kernels by size, so the bits may move; the mean may not, beyond fp32
    // rounding.
    double sum = 0, sum_first = 0;
    for (int64_t n = 0; n < N; n++) sum += nll.after()(0, n), sum_first += first_nll(0, n);
    EXPECT_NEAR(sum, sum_first, 1e-6 * sum_first);
  }
}

TEST_P(LossTest, NaNReachesItsRowAndNoOther) {
  const int64_t N = 5, C = 20, V = 61;
  Mat<double> xv = normal(N, C, 1);
  xv(2, 11) = NAN;
  Array x(ops, X, xv), w(ops, X, normal(V, C, 2)), targets(ops, Ids{1, 2, 3, 4, 5});
  Array scratch(ops, DType::F32, 2, V), nll(ops, DType::F32, 1, N), dx(ops, X, N, C),
      dw(ops, DType::F32, V, C);
  ops.linear_cross_entropy(nll.out(), dx.out(), dw.out(), x.in(), w.in(), targets.in(),
                           scratch.out(), 1, false);
  for (int64_t n = 0; n < N; n++) {
    EXPECT_EQ(std::isnan(nll.after()(0, n)), n == 2) << n;
    for (int64_t c = 0; c < C; c++)
      EXPECT_EQ(std::isnan(dx.after()(n, c)), n == 2) << n << "," << c;
  }
  for (const double d : dw.after().v) EXPECT_TRUE(std::isnan(d));
}

// Infinite logits are no loss that training may go on with: nll must not be finite.
TEST_P(LossTest, InfinityIsNotFinite) {
  Mat<double> xv(1, 4, 1.0);
  xv(0, 0) = INFINITY;
  Array x(ops, X, xv), w(ops, X, Mat<double>(7, 4, 1.0)), targets(ops, Ids{2}),
      scratch(ops, DType::F32, 1, 7);
  Array nll(ops, DType::F32, 1, 1);
  ops.linear_cross_entropy(nll.out(), {}, {}, x.in(), w.in(), targets.in(), scratch.out(), 1,
                           false);
  EXPECT_FALSE(std::isfinite(nll.after()(0, 0)));
}

}  // namespace
}  // namespace loqal::test
