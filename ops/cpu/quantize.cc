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
      : numel(q.numel()),
        block(q.format.block),
        blocks(q.format.blocks(numel)),
        groups(q.format.groups(numel)),
        codes(static_cast<Byte*>(q.data)),
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

// half(i) of the stream for a block of elements from `first` on, a multiple of 8. Rounds outside
// and Philox blocks inside, so that the compiler vectorizes it.
void random_halves(uint32_t* to, const PhiloxStream& stream, int64_t first) {
  constexpr int count = int(kLongest / 8);
  uint32_t a[count], b[count], c[count], d[count], k0 = stream.k0, k1 = stream.k1;
  for (int j = 0; j < count; j++) {
    const uint64_t index = uint64_t(first / 8 + j);
    a[j] = uint32_t(index), b[j] = uint32_t(index >> 32);
    c[j] = uint32_t(stream.step), d[j] = uint32_t(stream.step >> 32);
  }
  for (int round = 0; round < 10; round++) {
    for (int j = 0; j < count; j++) {
      const uint64_t p0 = uint64_t(0xD2511F53u) * a[j], p1 = uint64_t(0xCD9E8D57u) * c[j];
      a[j] = uint32_t(p1 >> 32) ^ b[j] ^ k0, b[j] = uint32_t(p1);
      c[j] = uint32_t(p0 >> 32) ^ d[j] ^ k1, d[j] = uint32_t(p0);
    }
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  for (int j = 0; j < count; j++) {
    const uint32_t words[4] = {a[j], b[j], c[j], d[j]};
    for (int h = 0; h < 8; h++) to[8 * j + h] = words[h / 2] >> (h % 2 * 16) & 0xFFFFu;
  }
}

void int8_codes(int8_t* to, const float* x, int64_t n, float scale, const uint32_t* random) {
  const float inverse = codec::inverse(scale);
  if (inverse == 0) {
    std::memset(to, 0, size_t(n));
  } else if (random) {
    float rounded[kLongest];  // two loops: the compiler vectorizes each
    for (int64_t i = 0; i < n; i++) rounded[i] = codec::round_stochastic(x[i] * inverse, random[i]);
    for (int64_t i = 0; i < n; i++) to[i] = codec::int8_code(rounded[i]);
  } else {
    for (int64_t i = 0; i < n; i++) to[i] = codec::int8_code(std::rint(x[i] * inverse));
  }
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
    scales[g] = codec::block_absmax(largest);
    for (int64_t b = g * 256; b < group_end(g); b++)
      q.scales[b] = uint8_t(codec::absmax_code(signed_map().value, absmax[b], scales[g], offset));
  }
}

float nf4_absmax(const Layout<const uint8_t>& q, int64_t b) {
  const auto* scales = reinterpret_cast<const float*>(q.group_scales);
  return codec::decoded_absmax(signed_map().value[q.scales[b]], scales[b / 256], scales[q.groups]);
}

template <class Y>
void int8_values(Y* y, const int8_t* codes, int64_t n, float scale) {
  for (int64_t i = 0; i < n; i++) y[i] = from_float<Y>(float(codes[i]) * scale);
}

// kWidth values: lane i is in 32-bit word i / 8, the high half of a byte first.
vf nf4_lanes(const uint8_t* codes) {
  vf values;
#ifdef __clang__  // has no shuffle by a variable
  for (int i = 0; i < simd::kWidth; i++)
    values[i] = kNf4.value[codes[i / 2] >> (i % 2 ? 0 : 4) & 15];
  return values;
#elif defined(__AVX512F__)
  const vu shift = {4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24};
  typedef uint64_t Pairs __attribute__((vector_size(64)));
  uint64_t pair;
  std::memcpy(&pair, codes, sizeof pair);
  const vu words =
      __builtin_shuffle(vu(Pairs{} + pair), vu{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
  const vu code = words >> shift & 15;
  std::memcpy(&values, kNf4.value, sizeof values);
  return __builtin_shuffle(values, code);
#else
  const vu shift = {4, 0, 12, 8, 20, 16, 28, 24};
  uint32_t word;
  std::memcpy(&word, codes, sizeof word);
  const vu code = (vu{} + word) >> shift & 15;
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
        if (draw) random_halves(random, stream, at);
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
