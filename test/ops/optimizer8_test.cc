// AdamW with 8-bit moments against double precision and a dynamic map of its own.
#include <algorithm>
#include <cstring>
#include <set>

#include "test/ops/quantized.h"

namespace loqal::test {
namespace {

class State {
 public:
  State(Ops& ops, bool is_signed, int64_t rows, int64_t cols)
      : ops_(ops),
        map_(dynamic_map(is_signed)),
        codes_(ops.alloc(rows * cols, "test")),
        absmax_(ops.alloc((rows * cols + 255) / 256 * 4, "test")) {
    moment = {{codes_.data(), DType::U8, rows, cols},
              {absmax_.as<float>(), 1, (rows * cols + 255) / 256}};
  }
  std::vector<uint8_t> codes() const {
    std::vector<uint8_t> c(size_t(moment.codes.numel()));
    ops_.download(c.data(), moment.codes);
    return c;
  }
  std::vector<float> absmax() const {
    std::vector<float> a(size_t(moment.absmax.numel()));
    ops_.download(a.data(), moment.absmax);
    return a;
  }
  std::vector<double> values() const {
    const std::vector<uint8_t> c = codes();
    const std::vector<float> a = absmax();
    std::vector<double> v(c.size());
    for (size_t i = 0; i < v.size(); i++) v[i] = map_[c[i]] * double(a[i / 256]);
    return v;
  }
  // Each value is, but for rounding, as near to `exact` as any of the map times the block's absmax.
  // A negative one and a positive second moment stay so. relative: roundings are of `exact` itself,
  // not of larger numbers that it is the difference of.
  void expect_nearest(const std::vector<double>& exact, bool relative = false) const {
    const std::vector<double> got = values();
    const std::vector<float> a = absmax();
    for (size_t i = 0; i < got.size(); i++) {
      double best = INFINITY;
      for (const double m : map_) {
        const bool leaps = m == 0 && exact[i] != 0 && (exact[i] < 0 || map_[0] == 0);
        if (!leaps) best = std::min(best, std::abs(m * double(a[i / 256]) - exact[i]));
      }
      const double rounding = relative ? 1e-6 * std::abs(exact[i]) : 1e-6 * double(a[i / 256]);
      EXPECT_LE(std::abs(got[i] - exact[i]), best + rounding) << i;
      if (exact[i] > 0 && map_[0] == 0) {
        EXPECT_GT(got[i], 0) << i;
      }
      if (exact[i] < 0) {
        EXPECT_LT(got[i], 0) << i;
      }
    }
  }
  Moment8 moment;

 private:
  Ops& ops_;
  std::vector<double> map_;
  Buffer codes_, absmax_;
};

LOQAL_OP_TESTS(AdamW8Test);

AdamWArgs args_of(int64_t step) {
  AdamWArgs args{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, step, 0.7f};
  args.rounding = PhiloxStream(7, Purpose::rounding, 0, 3, uint64_t(step));
  return args;
}

TEST_P(AdamW8Test, MapHas256Values) {
  for (const bool is_signed : {false, true}) {
    const std::vector<double> map = dynamic_map(is_signed);
    EXPECT_EQ(map.size(), 256u);
    EXPECT_EQ(map.back(), 1);
    EXPECT_NEAR(map.front(), is_signed ? -0.99296875 : 0, 1e-12);
  }
}

// Six steps over a ragged end: the update is exact in the new moments, and these are rounded to the
// nearest values afterwards.
TEST_P(AdamW8Test, StepsInDouble) {
  const int64_t rows = 11, cols = 131;
  Array p(ops, DType::F32, normal(rows, cols, 1)), copy(ops, DType::BF16, rows, cols);
  State m(ops, true, rows, cols), v(ops, false, rows, cols);
  Mat<double> want = p.after();
  for (int64_t step = 1; step <= 6; step++) {
    SCOPED_TRACE(step);
    Mat<double> gv = normal(rows, cols, uint32_t(10 + step), step == 3 ? 100 : 0.1);
    for (size_t i = 0; i < gv.v.size(); i += 7) gv.v[i] *= 1e-7;  // far below the others
    Array g(ops, DType::F32, gv);
    std::vector<double> m1 = m.values(), v1 = v.values();
    if (step == 1) m1.assign(m1.size(), 0), v1 = m1;
    const AdamWArgs a = args_of(step);
    ops.adamw8bit(p.out(), X == DType::BF16 ? copy.out() : Tensor{}, g.in(), m.moment, v.moment, a);
    const RefAdamW ref{a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.grad_scale};
    const Mat<double> got = p.after();
    for (size_t i = 0; i < want.v.size(); i++) {
      ref_adamw(want.v[i], m1[i], v1[i], double(float(gv.v[i])), ref, step);
      // fp32: a few roundings of p and of an update of at most lr / (1 - beta1).
      EXPECT_NEAR(got.v[i], want.v[i], 4e-7 * (std::abs(want.v[i]) + 0.1)) << i;
      want.v[i] = got.v[i];
    }
    m.expect_nearest(m1);
    v.expect_nearest(v1);
    if (X == DType::BF16) expect_equal(copy.after(), round_to(DType::BF16, got), "copy");
  }
}

// Parameters, codes and scales are the same bytes on all devices and for any number of threads.
TEST_P(AdamW8Test, SameBytesEverywhere) {
  const int64_t rows = 33, cols = 1001;  // three tasks of the CPU's
  const auto run = [&](Ops& on, bool half) {
    Array p(on, half ? DType::BF16 : DType::F32, round_to(DType::BF16, normal(rows, cols, 1)));
    State m(on, true, rows, cols), v(on, false, rows, cols);
    std::vector<double> all;
    for (int64_t step = 1; step <= 4; step++) {
      Mat<double> gv = normal(rows, cols, uint32_t(step), 0.01);
      for (size_t i = 0; i < gv.v.size(); i++) gv.v[i] *= std::pow(10.0, -double(i % 9));
      Array g(on, DType::F32, gv);
      on.adamw8bit(p.out(), {}, g.in(), m.moment, v.moment, args_of(step));
    }
    all = p.after().v;
    for (const uint8_t c : m.codes()) all.push_back(c);
    for (const uint8_t c : v.codes()) all.push_back(c);
    for (const float c : m.absmax()) all.push_back(double(c));
    for (const float c : v.absmax()) all.push_back(double(c));
    return all;
  };
  for (const int threads : {1, 3}) {
    const auto cpu = make_cpu_ops(threads);
    EXPECT_EQ(run(ops, X == DType::BF16), run(*cpu, X == DType::BF16)) << threads;
  }
}

// A number on each side of every threshold: the fast search agrees with the definition.
TEST_P(AdamW8Test, NearestOfTheMapAtEveryThreshold) {
  const std::vector<double> map = dynamic_map(true);
  Mat<double> gv(1, 256 * 3);
  for (int64_t i = 0; i < 255; i++) {
    const double middle = (map[size_t(i)] + map[size_t(i) + 1]) / 2;
    gv(0, 3 * i) = middle * (1 - 1e-5), gv(0, 3 * i + 1) = middle * (1 + 1e-5);
    gv(0, 3 * i + 2) = 1;  // each block's largest
  }
  gv(0, 765) = gv(0, 766) = gv(0, 767) = 1;
  Array p(ops, DType::F32, Mat<double>(1, 768)), g(ops, DType::F32, gv);
  State m(ops, true, 1, 768), v(ops, false, 1, 768);
  AdamWArgs a{0, 0, 0, 1e-8f, 0, 1, 1};
  ops.adamw8bit(p.out(), {}, g.in(), m.moment, v.moment, a);
  std::vector<double> exact(768), square(768);
  for (size_t i = 0; i < 768; i++)
    exact[i] = double(float(gv.v[i])), square[i] = double(float(gv.v[i]) * float(gv.v[i]));
  m.expect_nearest(exact, true);
  v.expect_nearest(square, true);
}

// What makes one comparison enough in ops/cpu/optimizer8.cc: numbers that share sign, exponent and
// seven bits have at most one threshold among them.
TEST(DynamicMap, NoTwoThresholdsShareTheirUpper16Bits) {
  for (const bool is_signed : {false, true}) {
    const std::vector<double> map = dynamic_map(is_signed);
    std::set<uint32_t> keys;
    for (size_t i = 0; i + 1 < map.size(); i++) {
      const float threshold = (float(map[i]) + float(map[i + 1])) * 0.5f;
      uint32_t bits;
      std::memcpy(&bits, &threshold, sizeof bits);
      EXPECT_TRUE(keys.insert(bits >> 16).second) << is_signed << " " << threshold;
    }
    EXPECT_EQ(keys.size(), 255u);
  }
}

TEST_P(AdamW8Test, NaNGradientIsNotHidden) {
  Mat<double> gv = normal(1, 600, 1);
  gv(0, 300) = NAN;
  Array p(ops, DType::F32, normal(1, 600, 2)), g(ops, DType::F32, gv),
      next(ops, DType::F32, normal(1, 600, 3));
  State m(ops, true, 1, 600), v(ops, false, 1, 600);
  ops.adamw8bit(p.out(), {}, g.in(), m.moment, v.moment, args_of(1));
  for (int64_t i = 0; i < 600; i++) EXPECT_EQ(std::isnan(p.after()(0, i)), i == 300) << i;
  ops.adamw8bit(p.out(), {}, next.in(), m.moment, v.moment, args_of(2));
  for (int64_t i = 0; i < 600; i++)
    EXPECT_EQ(std::isnan(p.after()(0, i)), i >= 256 && i < 512) << i;
}

}  // namespace
}  // namespace loqal::test
