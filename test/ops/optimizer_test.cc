// AdamW.
#include <deque>

#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

// Gradients and moments are fp32. The type parameter chooses whether fp32 parameters have a bf16
// copy.
LOQAL_OP_TESTS(AdamWTest);

// reports.md N11: one step on a 3-vector equals the closed form. At step 1 mhat = g and vhat = g^2,
// so p' = p (1 - lr wd) - lr g / (|g| + eps).
TEST_P(AdamWTest, FirstStepInClosedForm) {
  Mat<double> pv(1, 3), gv(1, 3);
  pv.v = {0.5, -0.25, 0.75};
  gv.v = {0.1, -2.0, 1e-7};
  Array p(ops, DType::F32, pv), g(ops, DType::F32, gv), m(ops, DType::F32, Mat<double>(1, 3)),
      v(ops, DType::F32, Mat<double>(1, 3)), copy(ops, DType::BF16, 1, 3);
  const AdamWArgs args{1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1.0f};
  ops.adamw(p.out(), X == DType::BF16 ? copy.out() : Tensor{}, g.in(), m.out(), v.out(), args);
  for (int64_t i = 0; i < 3; i++) {
    const double want = pv(0, i) * (1 - 1e-3 * 0.1) - 1e-3 * gv(0, i) / (std::abs(gv(0, i)) + 1e-8);
    EXPECT_NEAR(p.after()(0, i), want, 1e-7) << i;
  }
  if (X == DType::BF16) expect_equal(copy.after(), round_to(DType::BF16, p.after()), "copy");
}

TEST_P(AdamWTest, SeveralStepsInDouble) {
  const AdamWArgs variants[] = {{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1.0f},
                                {3e-4f, 0.9f, 0.999f, 1e-6f, 0.0f, 1, 0.37f},
                                {1e-3f, 0.0f, 0.9f, 1e-8f, 0.5f, 1, 1.0f}};
  for (const AdamWArgs& variant : variants)
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {1, 67}, {13, 33}}) {
      SCOPED_TRACE(cat(rows, "x", cols, " beta2 ", variant.beta2));
      Array p(ops, DType::F32, normal(rows, cols, 1)), m(ops, DType::F32, Mat<double>(rows, cols)),
          v(ops, DType::F32, Mat<double>(rows, cols)), copy(ops, DType::BF16, rows, cols);
      Mat<Err> rp = p.before(), rm = m.before(), rv = v.before();
      const RefAdamW ref{variant.lr,  variant.beta1,        variant.beta2,
                         variant.eps, variant.weight_decay, variant.grad_scale};
      for (int64_t step = 1; step <= 6; step++) {
        AdamWArgs args = variant;
        args.step = step;
        Array g(ops, DType::F32, normal(rows, cols, uint32_t(10 + step), step == 3 ? 100 : 0.1));
        const Mat<Err> gv = g.before();
        ops.adamw(p.out(), X == DType::BF16 ? copy.out() : Tensor{}, g.in(), m.out(), v.out(),
                  args);
        for (size_t i = 0; i < rp.v.size(); i++)
          ref_adamw(rp.v[i], rm.v[i], rv.v[i], gv.v[i], ref, step);
        expect_close(p.after(), rp, "p");
        expect_close(m.after(), rm, "m");
        expect_close(v.after(), rv, "v");
        if (X == DType::BF16) expect_equal(copy.after(), round_to(DType::BF16, p.after()), "copy");
      }
    }
}

// A zero gradient from the start leaves m = v = 0: no 0/0, only decay. A long-trained step count is
// fine.
TEST_P(AdamWTest, ZeroGradientAndLateSteps) {
  for (const int64_t step : {int64_t(1), int64_t(1000), int64_t(10000000)}) {
    Array p(ops, DType::F32, Mat<double>(1, 20, 0.5)), g(ops, DType::F32, Mat<double>(1, 20)),
        m(ops, DType::F32, Mat<double>(1, 20)), v(ops, DType::F32, Mat<double>(1, 20));
    ops.adamw(p.out(), {}, g.in(), m.out(), v.out(), {0.1f, 0.9f, 0.999f, 1e-8f, 0.5f, step, 1.0f});
    for (const double x : p.after().v) EXPECT_NEAR(x, 0.5 * (1 - 0.05), 1e-7);
  }
}

// ---- bf16 parameters without an fp32 copy --------------------------------------------------

AdamWArgs stochastic(int64_t step) {
  AdamWArgs args{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1.0f};
  args.rounding = PhiloxStream(7, Purpose::rounding, 0, 3, uint64_t(step));
  return args;
}

// Each result is one of the two neighbours of what an fp32 parameter would have become, and over
// many elements the mean is kept: nearest would lose it.
TEST_P(AdamWTest, Bf16ParametersAreRoundedStochastically) {
  const int64_t rows = 61, cols = 133;
  const Mat<double> start = round_to(DType::BF16, normal(rows, cols, 1)),
                    gv = normal(rows, cols, 2);
  Array half(ops, DType::BF16, start), whole(ops, DType::F32, start), g(ops, DType::F32, gv);
  std::deque<Array> moments;
  for (int i = 0; i < 4; i++) moments.emplace_back(ops, DType::F32, Mat<double>(rows, cols));
  ops.adamw(half.out(), {}, g.in(), moments[0].out(), moments[1].out(), stochastic(1));
  ops.adamw(whole.out(), {}, g.in(), moments[2].out(), moments[3].out(), stochastic(1));
  expect_equal(moments[0].after(), moments[2].after(), "m");
  expect_equal(moments[1].after(), moments[3].after(), "v");
  const Mat<double> exact = whole.after(), got = half.after(),
                    nearest = round_to(DType::BF16, exact);
  double bias = 0, spacing = 0;
  int64_t moved = 0;
  for (size_t i = 0; i < exact.v.size(); i++) {
    const double x = exact.v[i], step = std::ldexp(1.0, std::ilogb(x) - 7);
    EXPECT_LT(std::abs(got.v[i] - x), step) << i;
    EXPECT_EQ(got.v[i], double(to_float(to_bf16(float(got.v[i])))));
    const double towards = gv.v[i] > 0 ? -1 : 1;  // of the update
    bias += towards * (got.v[i] - x);
    spacing += step;
    moved += got.v[i] != nearest.v[i];
  }
  // The deviation of the sum is below spacing / 2 of one element times sqrt(n): 1 % of `spacing`.
  EXPECT_LT(std::abs(bias), 0.02 * spacing);
  EXPECT_GT(moved, int64_t(exact.v.size()) / 10);
}

// A value that bf16 holds stays, whatever the random bits; the same key gives the same bytes,
// another one others.
TEST_P(AdamWTest, StochasticRoundingIsAFunctionOfItsKey) {
  const Mat<double> start = round_to(DType::BF16, normal(1, 1003, 1));
  const auto after = [&](int64_t step, float lr) {
    Array p(ops, DType::BF16, start), g(ops, DType::F32, normal(1, 1003, 2)),
        m(ops, DType::F32, Mat<double>(1, 1003)), v(ops, DType::F32, Mat<double>(1, 1003));
    AdamWArgs args = stochastic(step);
    args.lr = lr;
    ops.adamw(p.out(), {}, g.in(), m.out(), v.out(), args);
    return p.bytes();
  };
  Array unchanged(ops, DType::BF16, start);
  EXPECT_EQ(after(1, 0), unchanged.bytes());
  EXPECT_EQ(after(1, 1e-3f), after(1, 1e-3f));
  EXPECT_NE(after(1, 1e-3f), after(2, 1e-3f));
}

TEST_P(AdamWTest, NaNGradientIsNotHidden) {
  Mat<double> gv = normal(1, 20, 1);
  gv(0, 7) = NAN;
  Array p(ops, DType::F32, normal(1, 20, 2)), g(ops, DType::F32, gv),
      m(ops, DType::F32, Mat<double>(1, 20)), v(ops, DType::F32, Mat<double>(1, 20));
  ops.adamw(p.out(), {}, g.in(), m.out(), v.out(), {0.1f, 0.9f, 0.999f, 1e-8f, 0.5f, 1, 1.0f});
  for (int64_t i = 0; i < 20; i++) EXPECT_EQ(std::isnan(p.after()(0, i)), i == 7);
}

}  // namespace
}  // namespace loqal::test
