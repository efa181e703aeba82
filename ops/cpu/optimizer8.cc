// AdamW with moments in 8 bits; see Ops::adamw8bit. Block by block: decode, step, encode.
#include <algorithm>
#include <cmath>

#include "ops/block_codec.h"
#include "ops/cpu/cpu_ops.h"

namespace loqal {

namespace {

struct Maps {
  codec::DynamicMap m = codec::make_dynamic_map(true), v = codec::make_dynamic_map(false);
};
const Maps& maps() {
  static const Maps both;
  return both;
}

struct Codes {
  uint8_t* codes;
  float* absmax;
};

void decode(float* to, const Codes& x, const codec::DynamicMap& map, int64_t b, int64_t n) {
  const float absmax = x.absmax[b];
  const uint8_t* codes = x.codes + b * kMomentBlock;
  for (int64_t i = 0; i < n; i++) to[i] = map.value[codes[i]] * absmax;
}

template <class Code>
void encode(const Codes& to, const float* x, int64_t b, int64_t n, const Code& code) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; i++) largest = std::max(largest, codec::magnitude(x[i]));
  const float absmax = codec::block_absmax(largest), inverse = codec::inverse(absmax);
  to.absmax[b] = absmax;
  uint8_t* codes = to.codes + b * kMomentBlock;
  for (int64_t i = 0; i < n; i++) codes[i] = uint8_t(code(x[i], inverse));
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
  const float *first_map = maps().m.value, *second_map = maps().v.value;
  dispatch(p, [&](auto type) {
    using P = decltype(type);
    pool_.chunks(p.numel(), kTaskElements, [&](int64_t first, int64_t last) {
      float pm[kMomentBlock], pv[kMomentBlock];
      for (int64_t at = first; at < last; at += kMomentBlock) {
        const int64_t b = at / kMomentBlock, n = std::min(kMomentBlock, last - at);
        decode(pm, cm, maps().m, b, n);
        decode(pv, cv, maps().v, b, n);
        step_block(p.as<P>() + at, copy ? copy.as<bf16>() + at : nullptr, g.as<float>() + at, pm,
                   pv, at, n, step, args.rounding);
        encode(cm, pm, b, n, [&](float x, float inverse) {
          return codec::first_moment_code(first_map, x, inverse);
        });
        encode(cv, pv, b, n, [&](float x, float inverse) {
          return codec::second_moment_code(second_map, x, inverse);
        });
      }
    });
  });
}

}  // namespace loqal
