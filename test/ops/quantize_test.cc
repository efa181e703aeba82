// Block codecs: the tables of the specification, exact codes, the same bytes everywhere.
#include "test/ops/quantized.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(QuantizeTest);

// spec/loqt.md, section 2: relative RMS error on N(0, 1).
TEST_P(QuantizeTest, ErrorOfNormalNumbers) {
  if (X == DType::BF16) GTEST_SKIP() << "the table is for fp32";
  const Mat<double> x = round_to(DType::F32, normal(384, 512, 11));
  const auto expect = [&](const QuantFormat& f, Rounding rounding, double want) {
    EXPECT_NEAR(relative_error(there_and_back(ops, f, DType::F32, x, rounding), x), want,
                0.02 * want)
        << name(f);
  };
  expect(kNf4, Rounding::nearest, 0.0920);
  expect({Kind::int8, 64}, Rounding::nearest, 0.00594);
  expect({Kind::int8, 128}, Rounding::nearest, 0.00647);
  expect({Kind::int8, 256}, Rounding::nearest, 0.00697);
  expect({Kind::int8, 128}, Rounding::stochastic, 0.0092);
}

// The sixteen values and fifteen thresholds; a tie goes to the lower code.
TEST_P(QuantizeTest, Nf4CodesAndThresholds) {
  const auto& value = kNf4Values;
  const double threshold[] = {-0.8480964,  -0.61063292,  -0.45999527, -0.33967943, -0.23460741,
                              -0.13791173, -0.045525018, 0.03979015,  0.12025525,  0.20352125,
                              0.29201377,  0.38931254,   0.50166342,  0.64278692,  0.86147842};
  Mat<double> x(1, 16 + 2 * 15);
  for (int64_t i = 0; i < 16; i++) x(0, i) = value[i];
  for (int64_t i = 0; i < 15; i++) {
    const float middle = float((value[i] + value[i + 1]) / 2);
    EXPECT_NEAR(middle, threshold[i], 5e-8 * 2);  // as printed
    x(0, 16 + 2 * i) = middle;
    x(0, 17 + 2 * i) = std::nextafter(middle, 2.0f);
  }
  const Fields f = quantized(ops, kNf4, DType::F32, x, Rounding::nearest);
  for (int i = 0; i < 16; i++) EXPECT_EQ(f.codes[size_t(i)], i);
  for (int i = 0; i < 15; i++) {
    EXPECT_EQ(f.codes[size_t(16 + 2 * i)], i);
    EXPECT_EQ(f.codes[size_t(17 + 2 * i)], i + 1);
  }
  EXPECT_EQ(f.scales.back(), 1.0f);  // one block: its absmax is the mean, exactly
  const Mat<double> y = there_and_back(ops, kNf4, DType::F32, x);
  for (int64_t i = 0; i < 16; i++) EXPECT_EQ(y(0, i), double(float(value[i])));
}

TEST_P(QuantizeTest, BytesPerParameter) {
  EXPECT_NEAR(double(kNf4.bytes(4096 * 4096)) / (4096.0 * 4096), 0.51587, 1e-5);
  EXPECT_NEAR(double(kInt8.bytes(4096 * 4096)) / (4096.0 * 4096), 1.03125, 1e-5);
}

// Every int8 code is the nearest integer (to 1e-4 of a step, about a tie) of x / scale, and the
// scale is absmax / 127 to 17 bits.
TEST_P(QuantizeTest, Int8CodesInDouble) {
  for (const int64_t block : {64, 128, 256}) {
    const Mat<double> x = round_to(X, normal(7, 91, 5));  // a ragged end
    const Fields f = quantized(ops, {Kind::int8, block}, X, x, Rounding::nearest);
    for (int64_t i = 0; i < x.rows * x.cols; i++) {
      const int64_t b = i / block, end = std::min(x.rows * x.cols, (b + 1) * block);
      double absmax = 0;
      for (int64_t j = b * block; j < end; j++) absmax = std::max(absmax, std::abs(x.v[size_t(j)]));
      const double scale = f.scales[size_t(b)];
      EXPECT_LE(scale, absmax / 127);
      EXPECT_GE(scale, absmax / 127 * (1 - 0x1p-16));
      EXPECT_NEAR(f.codes[size_t(i)], x.v[size_t(i)] / scale, 0.5001);
    }
  }
}

TEST_P(QuantizeTest, SameBytesOnAllDevicesAndForAnyThreads) {
  for (const QuantFormat& format : kFormats)
    for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic})
      for (const auto& [rows, cols] :
           {std::pair<int64_t, int64_t>{1, 1}, {127, 3}, {3, 5461}, {64, 1024}}) {
        SCOPED_TRACE(cat(name(format), " ", rows, "x", cols));
        const Mat<double> x = round_to(X, normal(rows, cols, uint32_t(rows)));
        const Fields here = quantized(ops, format, X, x, rounding);
        for (const int threads : {1, 3}) {
          const auto cpu = make_cpu_ops(threads);
          EXPECT_TRUE(here == quantized(*cpu, format, X, x, rounding)) << threads;
          const Mat<double> a = there_and_back(ops, format, X, x, rounding),
                            b = there_and_back(*cpu, format, X, x, rounding);
          expect_equal(a, b, "values");
        }
      }
}

// A merge of nothing changes nothing: int8 bytes come back from their own values.
TEST_P(QuantizeTest, RequantizingIsExact) {
  for (const QuantFormat& format : kFormats)
    for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
      SCOPED_TRACE(name(format));
      const Mat<double> y = there_and_back(ops, format, DType::F32, normal(37, 101, 9), rounding);
      const Fields f = quantized(ops, format, DType::F32, y, rounding);
      const Mat<double> z = there_and_back(ops, format, DType::F32, y, rounding);
      EXPECT_TRUE(f.codes == quantized(ops, format, DType::F32, z, rounding).codes);
      if (format.kind == Kind::int8) expect_equal(z, y, "values");
      else EXPECT_LT(relative_error(z, y), 2e-2);  // scales of scales move, codes do not
    }
}

// The mean over many streams is the value; what lies within 2^-12 of the grid always goes to it.
TEST_P(QuantizeTest, StochasticRoundingIsUnbiasedAndSnaps) {
  Mat<double> x(1, 64);
  for (int64_t i = 0; i < 64; i++) x(0, i) = double(i) + double(i) / 64;
  x(0, 0) = 127, x(0, 1) = 5 + 0x1p-13, x(0, 2) = 6 - 0x1p-13;
  const Fields scale = quantized(ops, {Kind::int8, 64}, DType::F32, x, Rounding::nearest);
  ASSERT_EQ(scale.scales[0], 1.0f);
  Array a(ops, DType::F32, x);
  Quantized q(ops, {Kind::int8, 64}, 1, 64);
  constexpr int trials = 2000;
  std::vector<double> mean(64);
  for (int t = 0; t < trials; t++) {
    ops.quantize(q.q, a.in(), Rounding::stochastic,
                 PhiloxStream(1, Purpose::test, 0, 0, uint64_t(t)));
    const Fields f(q.q, q.bytes());
    for (size_t i = 0; i < 64; i++) mean[i] += f.codes[i] / double(trials);
  }
  EXPECT_NEAR(mean[1], 5, 1e-9);
  EXPECT_NEAR(mean[2], 6, 1e-9);
  // Deviation of a mean: at most 0.5 / sqrt(trials) = 0.0112.
  for (size_t i = 3; i < 64; i++) EXPECT_NEAR(mean[i], x.v[i], 5 * 0.0112) << i;
}

// The cases of cases/inputs/r13: all zero, one outlier, tails of 63 and 65, 127 x 3.
TEST_P(QuantizeTest, ZeroOutlierTailsDenormals) {
  for (const QuantFormat& format : kFormats) {
    SCOPED_TRACE(name(format));
    expect_equal(there_and_back(ops, format, X, Mat<double>(4, 64)), Mat<double>(4, 64), "zeros");
    Mat<double> outlier = normal(4, 256, 3, 1e-3);
    outlier(1, 17) = 1000;
    const Mat<double> y = there_and_back(ops, format, DType::F32, outlier);
    EXPECT_NEAR(y(1, 17), 1000, format.kind == Kind::nf4 ? 20 : 0.02);
    EXPECT_EQ(y(1, 18), 0);         // of its block: below half a step
    const double last = y(3, 255);  // of a block without it (nf4: scales share a mean)
    if (format.kind == Kind::int8) {
      EXPECT_NEAR(last, outlier(3, 255), 2e-5);
    }
    Mat<double> tiny(2, 65, 1e-40);
    tiny(0, 1) = -1e-42;
    expect_equal(there_and_back(ops, format, DType::F32, tiny), Mat<double>(2, 65), "denormals");
    const Mat<double> large(1, 65, 3.4e38);
    EXPECT_LT(relative_error(there_and_back(ops, format, DType::F32, large), large), 1e-4);
    for (const int64_t n : {63, 64, 65, 127 * 3}) {
      const Mat<double> x = normal(1, n, uint32_t(n));
      EXPECT_LT(relative_error(there_and_back(ops, format, DType::F32, x), x),
                format.kind == Kind::nf4 ? 0.13 : 0.012)
          << n;
    }
  }
}

// Rows of very different scales share the scales of their scales: none may turn negative, or the
// signs of its block flip; and a block that is zero stays so.
TEST_P(QuantizeTest, Nf4KeepsSignsWhereScalesVary) {
  const int64_t rows = 1024;
  Mat<double> x = normal(rows, 64, 21);
  const Mat<double> spread = normal(rows, 1, 22);
  for (int64_t r = 0; r < rows; r++) {
    const double falling = std::pow(10, -3.0 * double(r) / 511), scale = std::exp(2 * spread(r, 0));
    for (int64_t c = 0; c < 64; c++) x(r, c) *= r == 5 ? 0 : r < 512 ? falling : scale;
  }
  x = round_to(X, x);
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
    const Mat<double> y = there_and_back(ops, kNf4, DType::F32, x, rounding);
    for (int64_t r = 0; r < rows; r++) {
      double largest = 0;
      for (int64_t c = 0; c < 64; c++) {
        EXPECT_GE(y(r, c) * x(r, c), 0) << r << " " << c;
        largest = std::max(largest, std::abs(y(r, c)));
      }
      EXPECT_EQ(largest > 0, r != 5) << r;
    }
    const Fields here = quantized(ops, kNf4, X, x, rounding);
    EXPECT_TRUE(here == quantized(*make_cpu_ops(3), kNf4, X, x, rounding));
  }
}

TEST_P(QuantizeTest, NotFiniteIsNotHidden) {
  for (const double bad : {double(NAN), double(INFINITY)})
    for (const QuantFormat& format : kFormats)
      for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
        Mat<double> x = normal(4, 256, 1);
        x(2, 100) = bad;
        const Mat<double> y = there_and_back(ops, format, DType::F32, x, rounding);
        const int64_t at = 2 * 256 + 100, first = at / format.block * format.block;
        for (int64_t i = 0; i < 4 * 256; i++) {
          const bool lost = format.kind == Kind::nf4 || (i >= first && i < first + format.block);
          EXPECT_EQ(std::isnan(y.v[size_t(i)]), lost) << name(format) << " " << i;
        }
      }
}

TEST_P(QuantizeTest, WrongFormatIsRefused) {
  Array x(ops, X, normal(2, 64, 1));
  Quantized q(ops, {Kind::int8, 64}, 2, 64);
  QTensor other = q.q;
  other.format.block = 32;
  EXPECT_THROW(ops.quantize(other, x.in(), Rounding::nearest, kStream), std::logic_error);
  other = q.q;
  other.rows = 1;
  EXPECT_THROW(ops.dequantize(x.out(), other), std::logic_error);
}

TEST_P(QuantizeTest, AxpbyAndDot) {
  const Mat<double> xv = normal(13, 33, 1), yv = normal(13, 33, 2);
  Array x(ops, DType::F32, xv), y(ops, DType::F32, yv), z(ops, DType::F32, 13, 33);
  double dot = 0;
  for (size_t i = 0; i < xv.v.size(); i++) dot += double(float(xv.v[i])) * double(float(yv.v[i]));
  EXPECT_NEAR(ops.dot(x.in(), y.in()), dot, 1e-12 * 429);
  ops.axpby(z.out(), 2, x.in(), 0);  // z holds NaN before
  ops.axpby(y.out(), -0.5f, x.in(), 3);
  for (size_t i = 0; i < xv.v.size(); i++) {
    EXPECT_EQ(z.after().v[i], 2 * double(float(xv.v[i])));
    EXPECT_NEAR(y.after().v[i], 3 * yv.v[i] - 0.5 * xv.v[i], 1e-6 * 4);
  }
}

}  // namespace
}  // namespace loqal::test
