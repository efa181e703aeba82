// The reference's own test: every analytic gradient in reference.h against the complex step through
// the corresponding forward, which needs no tolerance beyond double rounding.
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

using Complex = std::complex<double>;
using CMat = Mat<Complex>;

/// Gradient of sum(weight * forward(x)) by the complex step, one element of x at a time.
Mat<double> complex_step(const Mat<double>& x,
                         const std::function<Complex(const CMat&)>& objective) {
  constexpr double h = 1e-30;
  Mat<double> g(x.rows, x.cols);
  CMat z(x);
  for (size_t i = 0; i < x.v.size(); i++) {
    z.v[i] = Complex(x.v[i], h);
    g.v[i] = objective(z).imag() / h;
    z.v[i] = x.v[i];
  }
  return g;
}

Complex dot(const Mat<double>& a, const CMat& b) {
  Complex sum = 0;
  for (size_t i = 0; i < a.v.size(); i++) sum += a.v[i] * b.v[i];
  return sum;
}

void expect_same(const Mat<double>& got, const Mat<double>& want, const char* what) {
  double norm = 1;  // the terms are of order 1 even where they cancel (layernorm of one channel)
  for (const double x : want.v) norm = std::max(norm, std::abs(x));
  ASSERT_EQ(got.v.size(), want.v.size());
  for (size_t i = 0; i < got.v.size(); i++)
    ASSERT_NEAR(got.v[i], want.v[i], 1e-13 * norm * double(got.cols + got.rows))
        << what << " element " << i;
}

TEST(Reference, NormGradients) {
  for (const int64_t C : {1, 5, 33}) {
    const Mat<double> x = normal(3, C, 1), w = normal(1, C, 2), b = normal(1, C, 3),
                      dy = normal(3, C, 4);
    const auto layer = ref_layernorm(x, w, b, 1e-5, 0);
    const auto g = ref_norm_backward(dy, x, w, layer.stats, true, 0);
    const CMat cx(x), cw(w), cb(b);
    const auto ln = [&](const CMat& x_, const CMat& w_, const CMat& b_) {
      return dot(dy, ref_layernorm(x_, w_, b_, 1e-5, 0).y);
    };
    expect_same(g.dx, complex_step(x, [&](const CMat& z) { return ln(z, cw, cb); }),
                "layernorm dx");
    expect_same(g.dw, complex_step(w, [&](const CMat& z) { return ln(cx, z, cb); }),
                "layernorm dw");
    expect_same(g.db, complex_step(b, [&](const CMat& z) { return ln(cx, cw, z); }),
                "layernorm db");

    const auto rms = ref_rmsnorm(x, w, 1e-5, 0);
    const auto gr = ref_norm_backward(dy, x, w, rms.stats, false, 0);
    const auto rn = [&](const CMat& x_, const CMat& w_) {
      return dot(dy, ref_rmsnorm(x_, w_, 1e-5, 0).y);
    };
    expect_same(gr.dx, complex_step(x, [&](const CMat& z) { return rn(z, cw); }), "rmsnorm dx");
    expect_same(gr.dw, complex_step(w, [&](const CMat& z) { return rn(cx, z); }), "rmsnorm dw");
  }
}

TEST(Reference, AttentionGradients) {
  for (const RefShape& s : {RefShape{1, 1, 1, 1, 4}, {2, 5, 4, 2, 6}, {1, 6, 4, 1, 4}}) {
    const int64_t N = s.B * s.T;
    const Mat<double> q = normal(N, s.NH * s.HS, 1), k = normal(N, s.NKV * s.HS, 2),
                      v = normal(N, s.NKV * s.HS, 3), dout = normal(N, s.NH * s.HS, 4);
    const auto f = ref_attention(q, k, v, s, 0);
    const auto g = ref_attention_backward(dout, f.out, f.lse, q, k, v, s, 0);
    const CMat cq(q), ck(k), cv(v);
    const auto loss = [&](const CMat& q_, const CMat& k_, const CMat& v_) {
      return dot(dout, ref_attention(q_, k_, v_, s, 0).out);
    };
    expect_same(g.dq, complex_step(q, [&](const CMat& z) { return loss(z, ck, cv); }), "dq");
    expect_same(g.dk, complex_step(k, [&](const CMat& z) { return loss(cq, z, cv); }), "dk");
    expect_same(g.dv, complex_step(v, [&](const CMat& z) { return loss(cq, ck, z); }), "dv");
  }
}

TEST(Reference, RopeIsARotationAndItsInverseTheGradient) {
  const int64_t HS = 6, seq = 4;
  Mat<double> table(seq, HS);
  for (int64_t t = 0; t < seq; t++)
    for (int64_t i = 0; i < HS / 2; i++)
      table(t, i) = std::cos(0.3 * double(t + i)),
               table(t, HS / 2 + i) = std::sin(0.3 * double(t + i));
  const Mat<double> x = normal(8, 12, 1), dy = normal(8, 12, 2);
  expect_same(ref_rope(ref_rope(x, table, seq, HS, false, 0), table, seq, HS, true, 0), x,
              "round trip");
  const CMat ctable(table);
  expect_same(
      ref_rope(dy, table, seq, HS, true, 0),
      complex_step(x,
                   [&](const CMat& z) { return dot(dy, ref_rope(z, ctable, seq, HS, false, 0)); }),
      "rope dx");
}

TEST(Reference, ActivationDerivatives) {
  for (double x = -8; x <= 8; x += 0.37) {
    const Complex z(x, 1e-30);
    EXPECT_NEAR(ref_gelu_derivative(x), ref_gelu(z).imag() / 1e-30, 1e-14) << x;
    EXPECT_NEAR(ref_silu_derivative(x), ref_swiglu(z, Complex(1)).imag() / 1e-30, 1e-14) << x;
  }
}

TEST(Reference, LossGradients) {
  const Mat<double> x = normal(4, 5, 1), w = normal(7, 5, 2);
  const Ids targets = {3, -1, 0, 6};
  const double scale = 0.3;
  const auto r = ref_linear_cross_entropy(x, w, targets, scale, true, 0);
  const CMat cx(x), cw(w);
  const auto loss = [&](const CMat& x_, const CMat& w_) {
    Complex sum = 0;
    for (const Complex& nll : ref_linear_cross_entropy(x_, w_, targets, scale, false, 0).nll.v)
      sum += nll;
    return scale * sum;
  };
  expect_same(r.dx, complex_step(x, [&](const CMat& z) { return loss(z, cw); }), "dx");
  expect_same(r.dw, complex_step(w, [&](const CMat& z) { return loss(cx, z); }), "dw");
}

TEST(Reference, EmbeddingGradients) {
  const Ids tokens = {2, 0, 2, 4, 4, 2};
  const Mat<double> wte = normal(5, 3, 1), wpe = normal(4, 3, 2), dx = normal(6, 3, 3);
  const CMat cwte(wte), cwpe(wpe);
  const std::vector<int64_t> token_rows(tokens.begin(), tokens.end()),
      positions = {0, 1, 2, 0, 1, 2};
  expect_same(
      ref_embedding_backward(dx, token_rows, 5),
      complex_step(wte,
                   [&](const CMat& z) { return dot(dx, ref_embedding(tokens, z, cwpe, 3, 0)); }),
      "dwte");
  expect_same(
      ref_embedding_backward(dx, positions, 4),
      complex_step(wpe,
                   [&](const CMat& z) { return dot(dx, ref_embedding(tokens, cwte, z, 3, 0)); }),
      "dwpe");
}

}  // namespace
}  // namespace loqal::test
