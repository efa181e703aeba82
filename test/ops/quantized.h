// What tests of the block codecs share: a guarded matrix, its parts, and the maps once more.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "test/ops/op_test.h"

namespace loqal::test {

using Kind = QuantFormat::Kind;
inline constexpr QuantFormat kInt8 = {Kind::int8, 128}, kNf4 = {Kind::nf4, 64};
inline const std::vector<QuantFormat> kFormats = {
    {Kind::int8, 64}, {Kind::int8, 128}, {Kind::int8, 256}, {Kind::nf4, 64}};
// spec/loqt.md, section 2.
inline constexpr double kNf4Values[16] = {-1,
                                          -0.6961928009986877,
                                          -0.5250730514526367,
                                          -0.39491748809814453,
                                          -0.28444138169288635,
                                          -0.18477343022823334,
                                          -0.09105003625154495,
                                          0,
                                          0.07958029955625534,
                                          0.16093020141124725,
                                          0.24611230194568634,
                                          0.33791524171829224,
                                          0.44070982933044434,
                                          0.5626170039176941,
                                          0.7229568362236023,
                                          1};
inline const PhiloxStream kStream(3, Purpose::rounding, 0, 5, 7);

// A quantized matrix between guard bytes.
class Quantized {
 public:
  Quantized(Ops& ops, const QuantFormat& format, int64_t rows, int64_t cols) : ops_(ops) {
    const int64_t bytes = format.bytes(rows * cols);
    buffer_ = ops.alloc(bytes + 2 * kGuard, "test");
    const std::vector<char> image(size_t(bytes + 2 * kGuard), 0x5A);
    ops.upload({buffer_.data(), DType::U8, 1, int64_t(image.size())}, image.data());
    q = {buffer_.as<char>() + kGuard, format, rows, cols};
  }
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> all(size_t(q.bytes() + 2 * kGuard));
    ops_.download(all.data(), {buffer_.data(), DType::U8, 1, int64_t(all.size())});
    for (int64_t i = 0; i < kGuard; i++)
      EXPECT_TRUE(all[size_t(i)] == 0x5A && all[all.size() - 1 - size_t(i)] == 0x5A) << i;
    return {all.begin() + kGuard, all.end() - kGuard};
  }
  QTensor q;

 private:
  static constexpr int64_t kGuard = 64;
  Ops& ops_;
  Buffer buffer_;
};

// The parts of such bytes; the padding between them is not looked at.
struct Fields {
  Fields() = default;
  Fields(const QTensor& q, const std::vector<uint8_t>& b) {
    const int64_t n = q.numel(), blocks = q.format.blocks(n);
    const auto floats = [&](int64_t at, int64_t count) {
      std::vector<float> f(static_cast<size_t>(count));
      std::memcpy(f.data(), b.data() + at, f.size() * 4);
      return f;
    };
    const int64_t at = q.format.scales_at(n);
    if (q.format.kind == Kind::int8) {
      for (int64_t i = 0; i < n; i++) codes.push_back(int8_t(b[size_t(i)]));
      scales = floats(at, blocks);
    } else {
      for (int64_t i = 0; i < n; i++) codes.push_back(b[size_t(i / 2)] >> (i % 2 ? 0 : 4) & 15);
      absmax_codes.assign(b.begin() + at, b.begin() + at + blocks);
      scales = floats(q.format.group_scales_at(n), q.format.groups(n) + 1);
    }
  }
  bool operator==(const Fields& o) const {
    return codes == o.codes && absmax_codes == o.absmax_codes && scales.size() == o.scales.size() &&
           std::memcmp(scales.data(), o.scales.data(), scales.size() * 4) == 0;
  }
  std::vector<int> codes;
  std::vector<uint8_t> absmax_codes;
  std::vector<float> scales;
};

inline Fields quantized(Ops& ops, const QuantFormat& format, DType type, const Mat<double>& x,
                        Rounding rounding) {
  Array a(ops, type, x);
  Quantized q(ops, format, x.rows, x.cols);
  ops.quantize(q.q, a.in(), rounding, kStream);
  return {q.q, q.bytes()};
}

inline Mat<double> there_and_back(Ops& ops, const QuantFormat& format, DType type,
                                  const Mat<double>& x, Rounding rounding = Rounding::nearest) {
  Array a(ops, DType::F32, x), y(ops, type, x.rows, x.cols);
  Quantized q(ops, format, x.rows, x.cols);
  ops.quantize(q.q, a.in(), rounding, kStream);
  ops.dequantize(y.out(), q.q);
  return y.after();
}

inline double relative_error(const Mat<double>& got, const Mat<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.v.size(); i++) {
    error += (got.v[i] - want.v[i]) * (got.v[i] - want.v[i]);
    norm += want.v[i] * want.v[i];
  }
  return std::sqrt(error / norm);
}

inline std::string name(const QuantFormat& f) { return str(f); }

// bitsandbytes' map, from the formula of spec/loqt.md, section 2.
inline std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> map = {0, 1};
  for (int i = 0; i < 7; i++)
    for (int j = 0, n = is_signed ? 1 << i : 2 << i; j < n; j++) {
      const double low = 0.1 + 0.9 * j / n, high = 0.1 + 0.9 * (j + 1) / n;
      map.push_back((low + high) / 2 * std::pow(10, i - 6));
      if (is_signed) map.push_back(-map.back());
    }
  std::sort(map.begin(), map.end());
  return map;
}

}  // namespace loqal::test
