// Block quantization; see Ops::quantize. A task is a run of whole blocks, so that the bytes do not
// depend on the threads.
#include <algorithm>
#include <cstring>

#include "ops/block_codec.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;
using simd::vu;

namespace {

using codec::DynamicMap;
using codec::Nf4;

constexpr Nf4 kNf4 = codec::make_nf4();
constexpr int64_t kLongest = 256;  // block

const DynamicMap& signed_map() {
  static const DynamicMap map = codec::make_dynamic_map(true);
  return map;
}

// Where the parts of a matrix lie.
template <class Byte>
struct Layout {
  explicit Layout(const QTensor& q)
      : numel(q.numel()), block(q.format.block), blocks(q.format.blocks(numel)),
        groups(q.format.groups(numel)), codes(static_cast<Byte*>(q.data)),
        scales(codes + q.format.scales_at(numel)),
        group_scales(codes + (q.format.kind == QuantFormat::Kind::nf4
                                  ? q.format.group_scales_at(numel)
                                  : 0)) {}
  int64_t numel, block, blocks, groups;
  Byte *codes, *scales, *group_scales;

  int64_t length(int64_t b) const { return std::min(block, numel - b * block); }
};

// One block of x as floats, and the largest magnitude.
template <class X>
uint32_t load_block(float* to, const X* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; i++) {
    to[i] = to_float(x[i]);
    largest = std::max(largest, codec::magnitude(to[i]));
  }
  return largest;
}

void random_halves(uint32_t* to, const PhiloxStream& stream, int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
    const Philox4 block = stream.block(uint64_t(first + i) / 8);
    for (int64_t j = 0; j < 8; j++) to[i + j] = PhiloxStream::half(block, uint64_t(j));
  }
}

void int8_codes(int8_t* to, const float* x, int64_t n, float scale, const uint32_t* random) {
  const float inverse = codec::inverse(scale);
  if (inverse == 0) std::memset(to, 0, size_t(n));
  else if (random)
    for (int64_t i = 0; i < n; i++)
      to[i] = codec::int8_code(codec::round_stochastic(x[i] * inverse, random[i]));
  else
    for (int64_t i = 0; i < n; i++) to[i] = codec::int8_code(std::rint(x[i] * inverse));
}

// n codes, two a byte; the half byte after an odd end is the code of 0.
void nf4_codes(uint8_t* to, const float* x, int64_t n, float absmax, const uint32_t* random) {
  const float inverse = codec::inverse(absmax);
  int32_t codes[kLongest];
  codes[n] = 7;
  if (inverse == 0) std::fill_n(codes, n, 7);
  else if (random)
    for (int64_t i = 0; i < n; i++)
      codes[i] = codec::nf4_stochastic(kNf4, x[i] * inverse, random[i]);
  else
    for (int64_t i = 0; i < n; i++) codes[i] = codec::nf4_code(kNf4, x[i] * inverse);
  for (int64_t i = 0; i < n; i += 2) to[i / 2] = uint8_t(codes[i] << 4 | codes[i + 1]);
}

// absmax of all blocks -> codes, scale of each group, offset: the second quantization of NF4. The
// mean is the sum over groups of sums in order, in double.
void quantize_absmax(const Layout<uint8_t>& q, const float* absmax) {
  const auto group_end = [&](int64_t g) { return std::min(q.blocks, (g + 1) * 256); };
  double sum = 0;
  for (int64_t g = 0; g < q.groups; g++) {
    double part = 0;
    for (int64_t b = g * 256; b < group_end(g); b++) part += double(absmax[b]);
    sum += part;
  }
  const float offset = float(sum / double(q.blocks));
  auto* scales = reinterpret_cast<float*>(q.group_scales);
  scales[q.groups] = offset;
  for (int64_t g = 0; g < q.groups; g++) {
    uint32_t largest = 0;
    for (int64_t b = g * 256; b < group_end(g); b++)
      largest = std::max(largest, codec::magnitude(absmax[b] - offset));
    const float scale = codec::block_absmax(largest), inverse = codec::inverse(scale);
    scales[g] = scale;
    for (int64_t b = g * 256; b < group_end(g); b++)
      q.scales[b] =
          uint8_t(codec::dynamic_code(signed_map().value, (absmax[b] - offset) * inverse));
  }
}

float nf4_absmax(const Layout<const uint8_t>& q, int64_t b) {
  const auto* scales = reinterpret_cast<const float*>(q.group_scales);
  return signed_map().value[q.scales[b]] * scales[b / 256] + scales[q.groups];
}

template <class Y>
void int8_values(Y* y, const int8_t* codes, int64_t n, float scale) {
  for (int64_t i = 0; i < n; i++) y[i] = from_float<Y>(float(codes[i]) * scale);
}

// kWidth values of which 32-bit word i / 8 holds lane i: high half byte first within each byte.
vf nf4_lanes(const uint8_t* codes) {
  vu words, shift;
  for (int i = 0; i < simd::kWidth; i++) shift[i] = uint32_t(i % 8 * 4) ^ 4;
  uint32_t w[simd::kWidth / 8];
  std::memcpy(w, codes, sizeof w);
  for (int i = 0; i < simd::kWidth; i++) words[i] = w[i / 8];
  const vu code = words >> shift & 15;
  vf values;
#ifdef __AVX512F__
  std::memcpy(&values, kNf4.value, sizeof values);
  return __builtin_shuffle(values, code);
#else
  vf upper;
  std::memcpy(&values, kNf4.value, sizeof values);
  std::memcpy(&upper, kNf4.value + 8, sizeof upper);
  return __builtin_shuffle(values, upper, code);
#endif
}

template <class Y>
void nf4_values(Y* y, const uint8_t* codes, int64_t n, float absmax) {
  const vf scale = simd::splat(absmax);
  int64_t i = 0;
  for (; i + simd::kWidth <= n; i += simd::kWidth)
    simd::store(y + i, nf4_lanes(codes + i / 2) * scale);
  for (; i < n; i++)
    y[i] = from_float<Y>(kNf4.value[codes[i / 2] >> (i % 2 ? 0 : 4) & 15] * absmax);
}

}  // namespace

void CpuOps::do_quantize(const QTensor& t, const Tensor& x, Rounding rounding,
                         const PhiloxStream& stream) {
  const Layout<uint8_t> q(t);
  const bool int8 = t.format.kind == QuantFormat::Kind::int8;
  std::vector<float> absmax(size_t(int8 ? 0 : q.blocks));
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    pool_.chunks(q.blocks, kTaskElements / q.block, [&](int64_t first, int64_t last) {
      float values[kLongest];
      uint32_t random[kLongest];
      for (int64_t b = first; b < last; b++) {
        const int64_t n = q.length(b), at = b * q.block;
        const uint32_t largest = load_block(values, x.as<X>() + at, n);
        const bool draw = rounding == Rounding::stochastic;
        if (draw) random_halves(random, stream, at, n);
        if (int8) {
          const float scale = codec::int8_scale(largest);
          reinterpret_cast<float*>(q.scales)[b] = scale;
          int8_codes(reinterpret_cast<int8_t*>(q.codes) + at, values, n, scale,
                     draw ? random : nullptr);
        } else {
          absmax[size_t(b)] = codec::block_absmax(largest);
          nf4_codes(q.codes + at / 2, values, n, absmax[size_t(b)], draw ? random : nullptr);
        }
      }
    });
  });
  if (!int8 && q.blocks > 0) quantize_absmax(q, absmax.data());
}

void CpuOps::do_dequantize(const Tensor& y, const QTensor& t) {
  const Layout<const uint8_t> q(t);
  const bool int8 = t.format.kind == QuantFormat::Kind::int8;
  dispatch(y, [&](auto type) {
    using Y = decltype(type);
    pool_.chunks(q.blocks, kTaskElements / q.block, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; b++) {
        const int64_t n = q.length(b), at = b * q.block;
        Y* to = y.as<Y>() + at;
        if (int8)
          int8_values(to, reinterpret_cast<const int8_t*>(q.codes) + at, n,
                      reinterpret_cast<const float*>(q.scales)[b]);
        else nf4_values(to, q.codes + at / 2, n, nf4_absmax(q, b));
      }
    });
  });
}

}  // namespace loqal
