// gelu and swiglu, forward and backward, in place where the contract allows it.
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(ActivationTest);

const std::pair<int64_t, int64_t> kSizes[] = {{1, 1}, {3, 5}, {65, 33}, {2, 768}, {130, 20}};

/// Ordinary values, then the ends of the range: saturated, tiny, zero.
Mat<double> inputs(int64_t N, int64_t C, uint32_t seed) {
  Mat<double> x = normal(N, C, seed, 2);
  const double extremes[] = {100,  -100,  0,    1e-20, -1e-20, 12,  -12,
                             88.5, -88.5, -104, 3e4,   -3e4,   5.5, -5.5};
  for (size_t i = 0; i < std::size(extremes) && i + 1 < x.v.size(); i++)
    x.v[x.v.size() - 1 - i] = extremes[i];
  return x;
}

template <class F>
Mat<Err> map(const Mat<Err>& x, double u, const F& f) {
  Mat<Err> y(x.rows, x.cols);
  for (size_t i = 0; i < y.v.size(); i++) y.v[i] = rounded(f(x.v[i], i), u);
  return y;
}

TEST_P(ActivationTest, Gelu) {
  for (const auto& [N, C] : kSizes) {
    SCOPED_TRACE(cat(N, "x", C));
    Array x(ops, X, inputs(N, C, 1), C % 3), y(ops, X, N, C, C % 2);
    ops.gelu_forward(y.out(), x.in());
    const Mat<Err> want = map(x.before(), u, [](Err a, size_t) { return ref_gelu(a); });
    expect_close(y.after(), want, "y");

    Array dy(ops, X, normal(N, C, 2), 4), dx(ops, X, N, C), again(ops, X, N, C, 1),
        in_place(ops, X, normal(N, C, 2));
    const Mat<Err> dyv = dy.before();
    const Mat<Err> grad =
        map(x.before(), u, [&](Err a, size_t i) { return dyv.v[i] * ref_gelu_derivative(a); });
    ops.gelu_backward(dx.out(), again.out(), dy.in(), x.in());
    expect_close(dx.after(), grad, "dx");
    expect_close(again.after(), want, "y again");
    ops.gelu_backward(in_place.out(), {}, in_place.in(), x.in());
    expect_close(in_place.after(), grad, "dx == dy");
  }
}

TEST_P(ActivationTest, Swiglu) {
  for (const auto& [N, C] : kSizes) {
    SCOPED_TRACE(cat(N, "x", C));
    // gate and up are the halves of one buffer, as a fused projection leaves them.
    Array both(ops, X, N, 2 * C, C % 3), y(ops, X, N, C, C % 2);
    both.set(inputs(N, C, 1));
    both.set(normal(N, C, 2), C);
    ops.swiglu_forward(y.out(), both.in(0, C), both.in(C, C));
    const Mat<Err> gate = both.before(0, C), up = both.before(C, C);
    const Mat<Err> want = map(gate, u, [&](Err g, size_t i) { return ref_swiglu(g, up.v[i]); });
    expect_close(y.after(), want, "y");

    Array dy(ops, X, normal(N, C, 3), 2), dboth(ops, X, N, 2 * C), again(ops, X, N, C);
    const Mat<Err> dyv = dy.before();
    const Mat<Err> dgate =
        map(gate, u, [&](Err g, size_t i) { return dyv.v[i] * up.v[i] * ref_silu_derivative(g); });
    const Mat<Err> dup = map(gate, u, [&](Err g, size_t i) { return ref_swiglu(g, dyv.v[i]); });
    ops.swiglu_backward(dboth.out(0, C), dboth.out(C, C), again.out(), dy.in(), both.in(0, C),
                        both.in(C, C));
    expect_close(dboth.after(0, C), dgate, "dgate");
    expect_close(dboth.after(C, C), dup, "dup");
    expect_close(again.after(), want, "y again");
    ops.swiglu_backward(both.out(0, C), both.out(C, C), {}, dy.in(), both.in(0, C), both.in(C, C));
    expect_close(both.after(0, C), dgate, "dgate == gate");
    expect_close(both.after(C, C), dup, "dup == up");
  }
}

// Clamping inside exp and tanh must not turn a NaN into a number.
TEST_P(ActivationTest, NaNPropagates) {
  const Mat<double> nan(1, 40, NAN), one(1, 40, 1.0);
  Array x(ops, X, nan), up(ops, X, one), y(ops, X, 1, 40), dy(ops, X, one), dx(ops, X, 1, 40),
      dup(ops, X, 1, 40);
  ops.gelu_forward(y.out(), x.in());
  expect_equal(y.after(), nan, "gelu");
  ops.gelu_backward(dx.out(), {}, dy.in(), x.in());
  expect_equal(dx.after(), nan, "gelu'");
  ops.swiglu_forward(y.out(), x.in(), up.in());
  expect_equal(y.after(), nan, "swiglu");
  ops.swiglu_backward(dx.out(), dup.out(), {}, dy.in(), x.in(), up.in());
  expect_equal(dx.after(), nan, "dgate");
}

}  // namespace
}  // namespace loqal::test
