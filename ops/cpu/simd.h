// Vectors of floats through the compiler's vector extension: no intrinsics, any width, any target.
// Reductions have a fixed order, so a result depends on the data and the build alone.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace loqal::simd {

#ifdef __AVX512F__
constexpr int kWidth = 16;
#else
constexpr int kWidth = 8;
#endif

typedef float vf __attribute__((vector_size(kWidth * 4)));
typedef int32_t vi __attribute__((vector_size(kWidth * 4)));
typedef uint32_t vu __attribute__((vector_size(kWidth * 4)));
typedef uint16_t vh __attribute__((vector_size(kWidth * 2)));

/// x in all lanes. As x - 0, which the compiler may drop even for a signed zero: one broadcast.
inline vf splat(float x) { return x - vf{}; }

inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

inline vf load(const bf16* p) {
  vh h;
  std::memcpy(&h, p, sizeof h);
  return vf(__builtin_convertvector(h, vu) << 16);
}
inline void store(bf16* p, vf v) {
  const vu u = vu(v);
  const vu rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const vu quiet = (u >> 16) | 0x40u;
  const vh h = __builtin_convertvector((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded, vh);
  std::memcpy(p, &h, sizeof h);
}

/// The first n < kWidth elements; the others read as `fill` and are not written.
template <class T>
inline vf load_part(const T* p, int n, float fill = 0) {
  T buffer[kWidth];
  for (int i = 0; i < kWidth; i++) buffer[i] = from_float<T>(fill);
  for (int i = 0; i < n; i++) buffer[i] = p[i];
  return load(buffer);
}
template <class T>
inline void store_part(T* p, vf v, int n) {
  T buffer[kWidth];
  store(buffer, v);
  for (int i = 0; i < n; i++) p[i] = buffer[i];
}

inline vf max(vf a, vf b) { return b > a ? b : a; }

/// Pairwise sum of the lanes.
inline float sum(vf v) {
  float x[kWidth];
  store(x, v);
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}
inline float max_lane(vf v) {
  float x[kWidth], m;
  store(x, v);
  m = x[0];
  for (int i = 1; i < kWidth; i++) m = x[i] > m ? x[i] : m;
  return m;
}

/// e^x to 2 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a degree-6 polynomial in r. Overflow gives inf,
/// x below -86.99 gives 0 (true values there: less than 1.7e-38, next to the smallest normal
/// float), NaN stays NaN. Inlined always: a call would load some twenty constants each time.
[[gnu::always_inline]] inline vf exp(vf x) {
  // At low n is -126, and 2^(n-1) comes out as 0; e^high is infinity.
  const vf low = splat(-87.33654f), high = splat(89.0f);
  x = low > x ? low : x;
  x = high < x ? high : x;
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const vf shifted = x * 1.44269504f + magic;
  const vf n = shifted - magic;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = splat(2 * 1.9875691500e-4f);
  p = p * r + 2 * 1.3981999507e-3f;
  p = p * r + 2 * 8.3334519073e-3f;
  p = p * r + 2 * 4.1665795894e-2f;
  p = p * r + 2 * 1.6666665459e-1f;
  p = p * r + 2 * 5.0000001201e-1f;
  p = p * r * r + (r * 2.0f + 2.0f);
  // p is 2 e^r, times 2^(n-1): n reaches 128, whose exponent field would be that of infinity.
  return p * vf((vi(shifted) + 126) << 23);
}

/// Runs `full(i)` for whole vectors of [0, n) and
/// `part(i, rest)` once for the ragged end.
template <class Full, class Part>
inline void sweep(int64_t n, const Full& full, const Part& part) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) full(i);
  if (i < n) part(i, int(n - i));
}

/// y[i] = f(x0[i], x1[i], ...) elementwise; inputs and output may alias exactly.
template <class F, class Y, class... X>
inline void map(int64_t n, const F& f, Y* y, const X*... x) {
  sweep(
      n, [&](int64_t i) { store(y + i, f(load(x + i)...)); },
      [&](int64_t i, int rest) { store_part(y + i, f(load_part(x + i, rest)...), rest); });
}

/// Sum over f(x0[i], ...), four running vectors, then a fixed tree.
template <class F, class... X>
inline float map_sum(int64_t n, const F& f, const X*... x) {
  vf acc[4] = {};
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth)
    for (int j = 0; j < 4; j++) acc[j] += f(load(x + i + j * kWidth)...);
  for (; i + kWidth <= n; i += kWidth) acc[0] += f(load(x + i)...);
  if (i < n) {
    const int rest = int(n - i);
    vf tail = f(load_part(x + i, rest)...);
    float lanes[kWidth];
    store(lanes, tail);
    for (int j = rest; j < kWidth; j++) lanes[j] = 0;
    acc[1] += load(lanes);
  }
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

}  // namespace loqal::simd
