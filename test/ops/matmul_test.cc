// matmul in all its combinations, and bias_backward.
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(MatmulTest);

struct Case {
  int64_t M, N, K;
  bool ta, tb, accumulate, bias, residual, f32_result;
  int64_t pad;  // unused columns of every operand that may have them

  std::string text() const {
    return cat("C[", M, ",", N, "] K ", K, ta ? " A^T" : " A", tb ? " B^T" : " B",
               accumulate ? " +=" : " =", bias ? " bias" : "", residual ? " residual" : "",
               f32_result ? " F32" : "", " pad ", pad);
  }
};

void check(Ops& ops, DType X, const Case& k) {
  const std::string text = k.text();
  SCOPED_TRACE(text);
  const DType result = k.f32_result ? DType::F32 : X;
  const double u = result == DType::BF16 ? kRoundBF16 : kRoundF32;
  Array a(ops, X, k.ta ? normal(k.K, k.M, 1) : normal(k.M, k.K, 1), k.pad);
  Array b(ops, X, k.tb ? normal(k.N, k.K, 2) : normal(k.K, k.N, 2), 2 * k.pad);
  Array bias(ops, DType::F32, normal(1, k.N, 3)),
      residual(ops, result, normal(k.M, k.N, 4), 3 * k.pad);
  Array c(ops, result, k.M, k.N, k.pad);
  if (k.accumulate) c.set(normal(k.M, k.N, 5));
  MatmulArgs args{k.ta, k.tb, k.accumulate, k.bias ? bias.in() : Tensor{},
                  k.residual ? residual.in() : Tensor{}};
  ops.matmul(c.out(), a.in(), b.in(), args);
  const Mat<Err> none;
  expect_close(c.after(),
               ref_matmul(a.before(), b.before(), k.ta, k.tb, k.accumulate ? c.before() : none,
                          k.bias ? bias.before() : none, k.residual ? residual.before() : none, u),
               "c");
}

TEST_P(MatmulTest, AllCombinations) {
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {17, 33, 19}, {64, 48, 32}};
  for (const auto& [M, N, K] : sizes)
    for (int flags = 0; flags < 64; flags++)
      check(ops, X,
            {M, N, K, bool(flags & 1), bool(flags & 2), bool(flags & 4), bool(flags & 8),
             bool(flags & 16), bool(flags & 32), flags % 3 == 0 ? 0 : 5});
}

TEST_P(MatmulTest, RaggedSizes) {
  const int64_t sizes[][3] = {{1, 100, 33},  {70, 1, 40},   {130, 65, 97},
                              {9, 257, 130}, {200, 150, 1}, {31, 63, 520}};
  for (const auto& [M, N, K] : sizes)
    for (int t = 0; t < 4; t++)
      for (const bool accumulate : {false, true})
        check(ops, X,
              {M, N, K, bool(t & 1), bool(t & 2), accumulate, t == 1, t == 2, t >= 2,
               t == 3 ? 7 : 0});
}

// q, k and v are one buffer [N, 3C] and so are their weights' gradients: operands that are column
// or row slices of somebody else's matrix.
TEST_P(MatmulTest, SlicesOfOneBuffer) {
  const int64_t N = 21, C = 13;
  Array x(ops, X, normal(N, C, 1)), w(ops, X, normal(C, C, 2)), qkv(ops, X, N, 3 * C);
  ops.matmul(qkv.out(C, C), x.in(), w.in(), {.transpose_b = true, .bias = {}, .residual = {}});
  expect_close(qkv.after(C, C),
               ref_matmul(x.before(), w.before(), false, true, none, none, none, u), "slice of C");

  Array wide(ops, X, normal(N, 3 * C, 3)), dw(ops, DType::F32, C, C);
  ops.matmul(dw.out(), wide.in(2 * C, C), x.in(),
             {.transpose_a = true, .bias = {}, .residual = {}});
  expect_close(
      dw.after(),
      ref_matmul(wide.before(2 * C, C), x.before(), true, false, none, none, none, kRoundF32),
      "slice of A");
}

TEST_P(MatmulTest, RowsBeyondTheResultAreNotTouched) {
  Array a(ops, X, normal(10, 12, 1)), b(ops, X, normal(12, 9, 2)), c(ops, X, 14, 9);
  ops.matmul(c.out(0, 9, 2, 10), a.in(), b.in());  // ~Array checks rows 0, 1, 12 and 13
}

TEST_P(MatmulTest, NaNAndInfinityPropagate) {
  Mat<double> av = normal(5, 20, 1);
  av(3, 7) = NAN;
  Array a(ops, X, av), b(ops, X, normal(20, 6, 2)), c(ops, X, 5, 6);
  ops.matmul(c.out(), a.in(), b.in());
  expect_close(c.after(), ref_matmul(a.before(), b.before(), false, false, none, none, none, u),
               "NaN row");
}

TEST_P(MatmulTest, BiasBackward) {
  for (const auto& [N, O] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 33}, {65, 5}, {130, 1}, {300, 768}})
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(cat(N, "x", O, " accumulate ", accumulate));
      Array dy(ops, X, normal(N, O, 1), accumulate ? 3 : 0), db(ops, DType::F32, 1, O);
      if (accumulate) db.set(normal(1, O, 2));
      ops.bias_backward(db.out(), dy.in(), accumulate);
      const Mat<Err> sums = ref_column_sums(dy.before());
      expect_close(db.after(), accumulate ? ref_add(sums, db.before(), kRoundF32) : sums, "db");
    }
}

}  // namespace
}  // namespace loqal::test
