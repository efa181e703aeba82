// rope, and causal attention with grouped heads, forward and backward.
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(AttentionTest);

// T around the tile sizes 64 and 128, all head sizes in use, 1, 2, 4 and 8 query heads per k/v
// head.
const AttentionShape kShapes[] = {{1, 1, 1, 1, 4},    {2, 2, 2, 1, 8},   {1, 63, 4, 2, 20},
                                  {2, 64, 2, 2, 64},  {1, 65, 4, 1, 16}, {1, 130, 2, 1, 80},
                                  {1, 65, 2, 2, 128}, {3, 7, 8, 1, 8},   {5, 1, 3, 3, 12},
                                  {1, 257, 1, 1, 4},  {1, 200, 2, 1, 64}};

std::string text(const AttentionShape& s) {
  return cat("B=", s.B, " T=", s.T, " NH=", s.NH, " NKV=", s.NKV, " HS=", s.HS);
}

/// One call of forward and one of backward on buffers laid out as the models do: q, k and v (and
/// their gradients) are column slices of one matrix, or matrices of their own.
void check(Ops& ops, DType X, const AttentionShape& s, bool one_buffer, double scale) {
  SCOPED_TRACE(text(s) + (one_buffer ? " slices" : ""));
  const double u = X == DType::BF16 ? kRoundBF16 : kRoundF32;
  const RefShape rs{s.B, s.T, s.NH, s.NKV, s.HS};
  const int64_t N = s.B * s.T, Q = s.NH * s.HS, K = s.NKV * s.HS;
  const int64_t pad = one_buffer ? 2 * K : 0;
  Array q(ops, X, N, Q + pad), k(ops, X, normal(N, K, 2)), v(ops, X, normal(N, K, 3));
  Array dq(ops, X, N, Q + pad), dk(ops, X, N, K), dv(ops, X, N, K);
  q.set(normal(N, Q, 1, scale));
  if (one_buffer) q.set(normal(N, K, 2), Q), q.set(normal(N, K, 3), Q + K);
  const Tensor kt = one_buffer ? q.in(Q, K) : k.in(), vt = one_buffer ? q.in(Q + K, K) : v.in();
  Array out(ops, X, N, Q, one_buffer ? 3 : 0), lse(ops, DType::F32, s.B * s.NH, s.T);
  ops.attention_forward(out.out(), lse.out(), q.in(0, Q), kt, vt, s);
  const auto want = ref_attention(q.before(0, Q), k.before(), v.before(), rs, u);
  expect_close(out.after(), want.out, "out");
  expect_close(lse.after(), want.lse, "lse");

  // The backward pass is judged on the same rounded out and lse that it is given.
  Mat<double> out_values(N, Q), lse_values(s.B * s.NH, s.T);
  for (size_t i = 0; i < want.out.v.size(); i++) out_values.v[i] = want.out.v[i].v;
  for (size_t i = 0; i < want.lse.v.size(); i++) lse_values.v[i] = want.lse.v[i].v;
  Array out_in(ops, X, out_values), lse_in(ops, DType::F32, lse_values),
      dout(ops, X, normal(N, Q, 4), one_buffer);
  const Tensor dkt = one_buffer ? dq.out(Q, K) : dk.out(),
               dvt = one_buffer ? dq.out(Q + K, K) : dv.out();
  ops.attention_backward(dq.out(0, Q), dkt, dvt, dout.in(), out_in.in(), lse_in.in(), q.in(0, Q),
                         kt, vt, s);
  const auto grad = ref_attention_backward(dout.before(), out_in.before(), lse_in.before(),
                                           q.before(0, Q), k.before(), v.before(), rs, u);
  expect_close(dq.after(0, Q), grad.dq, "dq");
  expect_close(one_buffer ? dq.after(Q, K) : dk.after(), grad.dk, "dk");
  expect_close(one_buffer ? dq.after(Q + K, K) : dv.after(), grad.dv, "dv");
}

TEST_P(AttentionTest, SeparateBuffers) {
  for (const AttentionShape& s : kShapes) check(ops, X, s, false, 1);
}

TEST_P(AttentionTest, SlicesOfOneBuffer) {
  for (const AttentionShape& s : kShapes) check(ops, X, s, true, 1);
}

// Scores of +-1e4 overflow exp unless the maximum is taken out; the result is then one row of v.
TEST_P(AttentionTest, LargeScores) {
  const AttentionShape s{1, 70, 2, 1, 16};
  check(ops, X, s, false, 1e4);
  Array q(ops, X, normal(70, 32, 1, 1e4)), k(ops, X, normal(70, 16, 2)),
      v(ops, X, normal(70, 16, 3));
  Array out(ops, X, 70, 32), lse(ops, DType::F32, 2, 70);
  ops.attention_forward(out.out(), lse.out(), q.in(), k.in(), v.in(), s);
  for (const double x : out.after().v) ASSERT_TRUE(std::isfinite(x));
  for (const double x : lse.after().v) ASSERT_TRUE(std::isfinite(x));
}

// Very negative scores everywhere must not make the sum 0.
TEST_P(AttentionTest, EqualVeryNegativeScores) {
  const AttentionShape s{1, 67, 1, 1, 4};
  Array q(ops, X, Mat<double>(67, 4, 100.0)), k(ops, X, Mat<double>(67, 4, -100.0)),
      v(ops, X, normal(67, 4, 3));
  Array out(ops, X, 67, 4), lse(ops, DType::F32, 1, 67);
  ops.attention_forward(out.out(), lse.out(), q.in(), k.in(), v.in(), s);
  const auto want = ref_attention(q.before(), k.before(), v.before(), RefShape{1, 67, 1, 1, 4}, u);
  expect_close(out.after(), want.out, "mean of v");
  expect_close(lse.after(), want.lse, "lse");
}

// Causality, exactly: what comes later does not change a byte of what came before. (Finite values:
// a masked NaN in v may well reach earlier rows of its tile as 0 * NaN.)
TEST_P(AttentionTest, TheFutureIsNotSeen) {
  const AttentionShape s{1, 100, 2, 2, 8};
  Mat<double> kv = normal(100, 16, 2), vv = normal(100, 16, 3);
  Array q(ops, X, normal(100, 16, 1)), k(ops, X, kv), v(ops, X, vv), out(ops, X, 100, 16),
      lse(ops, DType::F32, 2, 100);
  ops.attention_forward(out.out(), lse.out(), q.in(), k.in(), v.in(), s);
  for (int64_t n = 41; n < 100; n++)
    for (int64_t c = 0; c < 16; c++) kv(n, c) = c % 2 ? 1e3 : -1e3, vv(n, c) = 1e4;
  Array k2(ops, X, kv), v2(ops, X, vv), out2(ops, X, 100, 16), lse2(ops, DType::F32, 2, 100);
  ops.attention_forward(out2.out(), lse2.out(), q.in(), k2.in(), v2.in(), s);
  const Mat<double> before = out.after(), after = out2.after(), lse_before = lse.after(),
                    lse_after = lse2.after();
  for (int64_t n = 0; n < 41; n++) {
    for (int64_t c = 0; c < 16; c++) ASSERT_EQ(before(n, c), after(n, c)) << n << "," << c;
    for (int64_t h = 0; h < 2; h++) ASSERT_EQ(lse_before(h, n), lse_after(h, n)) << n;
  }
  EXPECT_NE(before(60, 0), after(60, 0));
}

// Nor does one sequence of the batch see another, NaN or not.
TEST_P(AttentionTest, SequencesDoNotSeeEachOther) {
  const AttentionShape s{3, 21, 2, 1, 8};
  Mat<double> qv = normal(63, 16, 1), kv = normal(63, 8, 2), vv = normal(63, 8, 3);
  for (int64_t n = 21; n < 42; n++)
    for (int64_t c = 0; c < 8; c++) qv(n, c) = kv(n, c) = vv(n, c) = NAN;
  Array q(ops, X, qv), k(ops, X, kv), v(ops, X, vv), dout(ops, X, normal(63, 16, 4));
  Array out(ops, X, 63, 16), lse(ops, DType::F32, 6, 21), dq(ops, X, 63, 16), dk(ops, X, 63, 8),
      dv(ops, X, 63, 8);
  ops.attention_forward(out.out(), lse.out(), q.in(), k.in(), v.in(), s);
  ops.attention_backward(dq.out(), dk.out(), dv.out(), dout.in(), out.in(), lse.in(), q.in(),
                         k.in(), v.in(), s);
  for (const Mat<double>& m : {out.after(), dq.after(), dk.after(), dv.after()})
    for (int64_t n = 0; n < 63;
         n++)  // column 0: head 0, whose q, k and v are all NaN in the middle
      EXPECT_EQ(std::isnan(m(n, 0)), n >= 21 && n < 42) << n;
}

// The last T of S positions: the last T rows of attention over all of them, for one row at a time
// (sampling) and several, keys and values in rows of their own or inside wider ones.
TEST_P(AttentionTest, Cached) {
  for (const auto& [S, T, NH, NKV, HS] : {std::array<int64_t, 5>{1, 1, 1, 1, 4},
                                          {9, 1, 4, 2, 6},
                                          {67, 3, 4, 1, 20},
                                          {130, 1, 6, 6, 64},
                                          {65, 65, 2, 1, 8}})
    for (const int64_t pad : {0, 5})
      for (const double scale : {1.0, 1e4}) {  // 1e4: exp of a score would overflow
        SCOPED_TRACE(cat("S=", S, " T=", T, " NH=", NH, " NKV=", NKV, " HS=", HS, " pad=", pad));
        const int64_t Q = NH * HS, K = NKV * HS;
        Array all(ops, X, normal(S, Q, 1, scale)), k(ops, X, normal(S, K, 2), pad),
            v(ops, X, normal(S, K, 3), pad), out(ops, X, T, Q, pad);
        ops.attention_cached(out.out(), all.in().row_slice(S - T, T), k.in(), v.in(), HS);
        const Mat<Err> want =
            ref_attention(all.before(), k.before(), v.before(), RefShape{1, S, NH, NKV, HS}, u).out;
        Mat<Err> last(T, Q);
        last.v.assign(want.v.end() - T * Q, want.v.end());
        expect_close(out.after(), last, "out");
      }
}

Mat<double> rope_table(int64_t positions, int64_t HS) {
  Mat<double> table(positions, HS);
  for (int64_t t = 0; t < positions; t++)
    for (int64_t i = 0; i < HS / 2; i++) {
      const double angle = double(t) * std::pow(10000.0, -2.0 * double(i) / double(HS));
      table(t, i) = std::cos(angle);
      table(t, HS / 2 + i) = std::sin(angle);
    }
  return table;
}

TEST_P(AttentionTest, Rope) {
  for (const auto& [B, T, heads, HS] : {std::array<int64_t, 4>{1, 1, 1, 2},
                                        {2, 5, 3, 8},
                                        {1, 65, 2, 20},
                                        {3, 64, 1, 64},
                                        {1, 130, 2, 128}})
    for (const bool inverse : {false, true}) {
      SCOPED_TRACE(cat("B=", B, " T=", T, " heads=", heads, " HS=", HS, inverse ? " inverse" : ""));
      const int64_t cols = heads * HS;  // rotated: the middle one of three slices of a buffer
      Array table(ops, DType::F32, rope_table(T + 3, HS)), x(ops, X, normal(B * T, 3 * cols, 1));
      ops.rope(x.out(cols, cols), table.in(), T, HS, inverse);
      expect_close(x.after(cols, cols),
                   ref_rope(x.before(cols, cols), table.before(), T, HS, inverse, u), "x");
    }
}

}  // namespace
}  // namespace loqal::test
