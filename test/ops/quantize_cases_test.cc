// Block codecs where others' were wrong: ragged ends, many groups of scales, unchanged weights.
#include "test/ops/quantized.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(QuantizeCasesTest);

// 33,153 elements are 519 blocks of 64: two whole groups of scales and a ragged one.
const std::pair<int64_t, int64_t> kShapes[] = {{1, 63}, {5, 13}, {127, 3}, {257, 129}};

float absmax_of(const Mat<double>& x, int64_t first, int64_t length) {
  double largest = 0;
  for (int64_t i = first; i < std::min(first + length, x.rows * x.cols); i++)
    largest = std::max(largest, std::abs(x.v[size_t(i)]));
  return float(largest);
}

uint8_t nearest(const std::vector<double>& values, double x) {
  const auto closer = [&](double a, double b) { return std::abs(a - x) < std::abs(b - x); };
  return uint8_t(std::min_element(values.begin(), values.end(), closer) - values.begin());
}

// reports.md Q1: of each block on its own, also beside an outlier of 1000. Half the widest gap of
// the grid, and in nf4 what rounding the absmax to 8 bits adds: half of the map's widest gap, 0.9 /
// 64, of the group's largest deviation, or all of it where the nearest would be negative.
TEST_P(QuantizeCasesTest, EveryBlockIsWithinItsBound) {
  for (const QuantFormat& format : kFormats)
    for (const auto& [rows, cols] : kShapes)
      for (const bool outlier : {false, true}) {
        SCOPED_TRACE(cat(name(format), " ", rows, "x", cols, outlier ? " with an outlier" : ""));
        Mat<double> x = round_to(DType::F32, normal(rows, cols, 17, 0.02));
        if (outlier) x.v[5] = 1000;
        const Mat<double> y = there_and_back(ops, format, DType::F32, x);
        const Fields f = quantized(ops, format, DType::F32, x, Rounding::nearest);
        for (int64_t i = 0; i < rows * cols; i++) {
          const int64_t b = i / format.block;
          const double absmax = absmax_of(x, b * format.block, format.block);
          const double bound = format.kind == Kind::int8 ? absmax / 254
                                                         : absmax * (1 - 0.6961928) / 2 +
                                                               double(f.scales[size_t(b / 256)]) *
                                                                   0.9 / 64 * (outlier ? 1 : 0.5);
          ASSERT_LE(std::abs(y.v[size_t(i)] - x.v[size_t(i)]), 1.0001 * bound) << i;
        }
      }
}

// spec/loqt.md, section 2, once more: NF4 of x (1 / absmax), and absmax less the mean of them all
// in blocks of 256 with the signed dynamic map. All bytes.
TEST_P(QuantizeCasesTest, Nf4WithItsSecondQuantization) {
  const std::vector<double> grid(std::begin(kNf4Values), std::end(kNf4Values));
  const std::vector<double> map = dynamic_map(true);
  for (const auto& [rows, cols] : kShapes) {
    SCOPED_TRACE(cat(rows, "x", cols));
    Mat<double> x = normal(rows, cols, 23, 0.02);
    for (int64_t i = 0; i < rows * cols; i++) x.v[size_t(i)] *= 1 + double(i / 64 % 7) / 4;
    x = round_to(X, x);
    Fields want;
    std::vector<float> absmax;
    for (int64_t i = 0; i < rows * cols; i++) {
      if (i % 64 == 0) absmax.push_back(absmax_of(x, i, 64));
      want.codes.push_back(nearest(grid, double(float(x.v[size_t(i)]) * (1 / absmax.back()))));
    }
    double sum = 0;
    for (const float a : absmax) sum += double(a);
    const float offset = float(sum / double(absmax.size()));
    for (size_t b = 0; b < absmax.size(); b++) {
      if (b % 256 == 0) {
        want.scales.push_back(0);
        for (size_t i = b; i < std::min(absmax.size(), b + 256); i++)
          want.scales.back() = std::max(want.scales.back(), std::abs(absmax[i] - offset));
      }
      const float scale = want.scales.back();
      want.absmax_codes.push_back(
          scale > 0 ? nearest(map, double((absmax[b] - offset) * (1 / scale))) : 127);
    }
    want.scales.push_back(offset);
    const Fields got = quantized(ops, kNf4, X, x, Rounding::nearest);
    EXPECT_EQ(got.codes, want.codes);
    EXPECT_EQ(got.absmax_codes, want.absmax_codes);
    EXPECT_EQ(got.scales, want.scales);
  }
}

// reports.md Q5: a merge that changes nothing, made as if it did: its values rounded again, 50
// times, with other random numbers each time; each second time with noise of half of what is
// snapped, but in the largest of a block, of which the scale is made. (A merge of a zero B does not
// come here.)
TEST_P(QuantizeCasesTest, FiftyRequantizationsChangeNoByte) {
  for (const int64_t block : {64, 128, 256})
    for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
      Array w(ops, DType::F32, normal(37, 101, 9)), values(ops, DType::F32, 37, 101);
      Quantized q(ops, {Kind::int8, block}, 37, 101);
      ops.quantize(q.q, w.in(), rounding, kStream);
      const std::vector<uint8_t> before = q.bytes();
      for (uint64_t i = 0; i < 50; i++) {
        ops.dequantize(values.out(), q.q);
        const Mat<double> y = values.after();
        Mat<double> x = y;
        float absmax = 0;
        for (int64_t at = 0; i % 2 && at < x.rows * x.cols; at++) {
          if (at % block == 0) absmax = absmax_of(y, at, block);
          double& v = x.v[size_t(at)];
          if (std::abs(v) < double(absmax)) v += (at % 2 ? 0x1p-13 : -0x1p-13) * absmax / 127;
        }
        values.set(x);
        ops.quantize(q.q, values.in(), rounding, PhiloxStream(4, Purpose::rounding, 0, 5, i));
        ASSERT_EQ(q.bytes(), before) << block << " " << i;
      }
    }
}

// reports.md Q4: what is read is not written. (The guards of `Array` watch the floats.)
TEST_P(QuantizeCasesTest, ReadingLeavesTheBytes) {
  for (const QuantFormat& format : kFormats) {
    const Array x(ops, X, normal(37, 101, 9));
    Array y(ops, X, 37, 101);
    Quantized q(ops, format, 37, 101);
    ops.quantize(q.q, x.in(), Rounding::stochastic, kStream);
    const std::vector<uint8_t> before = q.bytes();
    ops.dequantize(y.out(), q.q);
    EXPECT_EQ(q.bytes(), before) << name(format);
  }
}

}  // namespace
}  // namespace loqal::test
