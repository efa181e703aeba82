// AdamW with moments in 8 bits; see Ops::adamw8bit. Block by block: decode, step, encode.
#include <algorithm>
#include <cmath>

#include "ops/block_codec.h"
#include "ops/cpu/cpu_ops.h"

namespace loqal {

namespace {

// A map and its inverse. The code of x is the number of thresholds below it; of the numbers that
// share their upper 16 bits, sign and exponent among them, `base` has that of the least, and there
// is no second threshold among them (tests hold results just
// beside every threshold, not all numbers, against the definition).
struct Map {
  explicit Map(bool is_signed) : value(codec::make_dynamic_map(is_signed)), base(1 << 16) {
    for (int i = 0; i < 255; i++) threshold[i] = (value.value[i] + value.value[i + 1]) * 0.5f;
    threshold[255] = INFINITY;
    for (uint32_t key = 0; key < base.size(); key++)
      base[key] =
          codec::dynamic_code(value.value, codec::float_of(key << 16 | (key >> 15 ? 0xFFFFu : 0u)));
  }
  codec::DynamicMap value;
  float threshold[256];
  std::vector<int32_t> base;
};
const Map& map_of_m() {
  static const Map map(true);
  return map;
}
const Map& map_of_v() {
  static const Map map(false);
  return map;
}

struct Codes {
  uint8_t* codes;
  float* absmax;
};

void decode(float* to, const Codes& x, const Map& map, int64_t b, int64_t n) {
  const float absmax = x.absmax[b];
  const uint8_t* codes = x.codes + b * kMomentBlock;
  const float* value = map.value.value;
  for (int64_t i = 0; i < n; i++) to[i] = value[codes[i]] * absmax;
}

// fix(code, x): what Ops::adamw8bit says of zero.
template <class Fix>
void encode(const Codes& to, const float* x, const Map& map, int64_t b, int64_t n, const Fix& fix) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; i++) largest = std::max(largest, codec::magnitude(x[i]));
  const float absmax = codec::block_absmax(largest), inverse = codec::inverse(absmax);
  to.absmax[b] = absmax;
  const int32_t* base = map.base.data();
  int32_t codes[kMomentBlock];
  for (int64_t i = 0; i < n; i++) {
    const float t = x[i] * inverse;
    const int32_t low = base[codec::bits_of(t) >> 16];
    codes[i] = fix(low + (t > map.threshold[low] ? 1 : 0), x[i]);
  }
  uint8_t* out = to.codes + b * kMomentBlock;
  for (int64_t i = 0; i < n; i++) out[i] = uint8_t(codes[i]);
}

template <class P>
void step_block(P* p, bf16* copy, const float* g, float* m, float* v, int64_t at, int64_t n,
                const codec::AdamStep& step, const PhiloxStream& rounding) {
  float next[kMomentBlock];
  for (int64_t i = 0; i < n; i++) next[i] = step(to_float(p[i]), g[i], m[i], v[i]);
  if constexpr (std::is_same_v<P, bf16>)
    for (int64_t i = 0; i < n; i += 8) {
      const Philox4 block = rounding.block(uint64_t(at + i) / 8);
      for (int64_t j = i; j < std::min(n, i + 8); j++)
        next[j] = round_stochastic_bf16(next[j], PhiloxStream::half(block, uint64_t(j)));
    }
  for (int64_t i = 0; i < n; i++) p[i] = from_float<P>(next[i]);
  if (copy)
    for (int64_t i = 0; i < n; i++) copy[i] = to_bf16(next[i]);
}

}  // namespace

void CpuOps::do_adamw8bit(const Tensor& p, const Tensor& copy, const Tensor& g, const Moment8& m,
                          const Moment8& v, const AdamWArgs& args) {
  const codec::AdamStep step = codec::adam_step(args);
  const Codes cm = {m.codes.as<uint8_t>(), m.absmax.as<float>()},
              cv = {v.codes.as<uint8_t>(), v.absmax.as<float>()};
  dispatch(p, [&](auto type) {
    using P = decltype(type);
    pool_.chunks(p.numel(), kTaskElements, [&](int64_t first, int64_t last) {
      float pm[kMomentBlock], pv[kMomentBlock];
      for (int64_t at = first; at < last; at += kMomentBlock) {
        const int64_t b = at / kMomentBlock, n = std::min(kMomentBlock, last - at);
        decode(pm, cm, map_of_m(), b, n);
        decode(pv, cv, map_of_v(), b, n);
        step_block(p.as<P>() + at, copy ? copy.as<bf16>() + at : nullptr, g.as<float>() + at, pm,
                   pv, at, n, step, args.rounding);
        encode(cm, pm, map_of_m(), b, n, codec::nonzero_first_moment);
        encode(cv, pv, map_of_v(), b, n, codec::nonzero_second_moment);
      }
    });
  });
}

}  // namespace loqal
