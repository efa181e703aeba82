// The arithmetic of quantization, element by element, for both devices: the same source and no
// contraction to fused multiply-adds give the same bytes (the Makefile compiles the files that
// include this so). Layout: core/quant_format.h. Contracts: Ops::quantize, Ops::adamw8bit.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/philox.h"
#include "ops/ops.h"

namespace loqal::codec {

LOQAL_HD inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
LOQAL_HD inline float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/// |x| as an integer that is ordered as |x| is; NaN is above infinity. A maximum of these is exact
/// in any order, and does not lose a NaN.
LOQAL_HD inline uint32_t magnitude(float x) { return bits_of(x) & 0x7FFFFFFFu; }
constexpr uint32_t kInfinity = 0x7F800000u, kNaN = 0x7FC00000u, kSmallestNormal = 0x00800000u;

/// Of the largest magnitude of a block: itself, 0 if it is below the smallest normal number, NaN if
/// it is not finite.
LOQAL_HD inline float block_absmax(uint32_t largest) {
  if (largest >= kInfinity) return float_of(kNaN);
  return largest < kSmallestNormal ? 0.0f : float_of(largest);
}
/// 1 / x, and 0 for 0 and NaN: everything in such a block gets the code of 0.
LOQAL_HD inline float inverse(float x) { return x > 0 ? 1.0f / x : 0.0f; }

// ---- int8 -------------------------------------------------------------------------------------

/// absmax / 127, cut to 17 significant bits: times a code of 7 bits it is exact.
LOQAL_HD inline float int8_scale(uint32_t largest) {
  if (largest >= kInfinity) return float_of(kNaN);
  const float scale = float_of(bits_of(float_of(largest) / 127.0f) & 0xFFFFFF80u);
  return scale < float_of(kSmallestNormal) ? 0.0f : scale;
}

constexpr float kSnap = 0x1p-12f;  ///< of a step: closer values go to the grid

/// The integer at or beside t, up with the probability of t's distance from the lower one.
LOQAL_HD inline float round_stochastic(float t, uint32_t random16) {
  // The floor; g++ vectorizes rint, but not floor, without -fno-trapping-math.
  const float nearest = rintf(t), low = nearest > t ? nearest - 1.0f : nearest, part = t - low;
  const float uniform = (float(int32_t(random16)) + 0.5f) * 0x1p-16f;  // between 0 and 1
  const float snapped = part < kSnap ? 0.0f : part > 1.0f - kSnap ? 1.0f : part;
  return low + (uniform < snapped ? 1.0f : 0.0f);
}
LOQAL_HD inline int8_t int8_code(float rounded) {
  const float above = rounded < -127.0f ? -127.0f : rounded;
  return int8_t(int32_t(above > 127.0f ? 127.0f : above));
}

// ---- NF4 --------------------------------------------------------------------------------------

struct Nf4 {
  float value[16];
  float threshold[15];  ///< midpoints: the code of x is the number of thresholds below x
};
constexpr Nf4 make_nf4() {
  Nf4 t = {{-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
            -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
            0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
            0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f},
           {}};
  for (int i = 0; i < 15; i++)
    t.threshold[i] = float((double(t.value[i]) + double(t.value[i + 1])) / 2);
  return t;
}

/// Both of x in [-1, 1]; `t` is a copy in the device's memory.
LOQAL_HD inline int nf4_code(const Nf4& t, float x) {
  int code = 0;
  for (int i = 0; i < 15; i++) code += x > t.threshold[i] ? 1 : 0;
  return code;
}
LOQAL_HD inline int nf4_stochastic(const Nf4& t, float x, uint32_t random16) {
  int low = 0;
  for (int i = 1; i < 15; i++) low += x >= t.value[i] ? 1 : 0;
  const float part = (x - t.value[low]) / (t.value[low + 1] - t.value[low]);
  return low + int(round_stochastic(part < 0 ? 0.0f : part, random16));
}

// ---- the dynamic 8-bit maps -------------------------------------------------------------------

/// 256 values in ascending order: bitsandbytes' create_dynamic_map. Seven decades below 1; in
/// decade i = 0..6, 10^(i-6) times the midpoints of 2^i (unsigned: 2^(i+1)) equal parts of
/// [0.1, 1]; with both signs, or positive alone; 0; 1.
struct DynamicMap {
  float value[256];
};
DynamicMap make_dynamic_map(bool is_signed);
constexpr int kSignedZero = 127;  ///< code of 0; in the unsigned map it is 0

/// The nearest of the values, ties to the lower; NaN gives 0.
LOQAL_HD inline int dynamic_code(const float* value, float x) {
  int code = 0;
  for (int step = 128; step > 0; step /= 2)
    code += x > (value[code + step - 1] + value[code + step]) * 0.5f ? step : 0;
  return code;
}

/// NF4's second quantization: the absmax of a block that a code stands for.
LOQAL_HD inline float decoded_absmax(float map_value, float group_scale, float offset) {
  return map_value * group_scale + offset;
}
/// The nearest code; of a block that is not zero, the nearest whose absmax is positive: where the
/// scales of blocks vary a lot, the error of `absmax - offset` may exceed absmax; a negative one
/// would flip the signs of the block. At the code of 0 it is the offset, the mean of them all.
LOQAL_HD inline int absmax_code(const float* value, float absmax, float group_scale, float offset) {
  int code = dynamic_code(value, (absmax - offset) * inverse(group_scale));
  while (absmax > 0 && code < 255 && decoded_absmax(value[code], group_scale, offset) <= 0) code++;
  return code;
}

/// Of moments, as Ops::adamw8bit has them.
LOQAL_HD inline int nonzero_first_moment(int code, float m) {
  return code - int((m < 0) & (code == kSignedZero));
}
LOQAL_HD inline int nonzero_second_moment(int code, float v) {
  return code + int((v > 0) & (code == 0));
}
LOQAL_HD inline int first_moment_code(const float* value, float m, float inverse_absmax) {
  return nonzero_first_moment(dynamic_code(value, m * inverse_absmax), m);
}
LOQAL_HD inline int second_moment_code(const float* value, float v, float inverse_absmax) {
  return nonzero_second_moment(dynamic_code(value, v * inverse_absmax), v);
}

// ---- AdamW ------------------------------------------------------------------------------------

/// The step's constants: decay = 1 - lr wd, rate = lr / (1 - b1^t), root = 1 / sqrt(1 - b2^t).
struct AdamStep {
  float beta1, beta2, eps, scale, decay, rate, root;

  /// m and v in and out; returns the new p.
  LOQAL_HD float operator()(float p, float g, float& m, float& v) const {
    const float grad = g * scale;
    m = beta1 * m + (1.0f - beta1) * grad;
    v = beta2 * v + (1.0f - beta2) * (grad * grad);
    return p * decay - rate * m / (sqrtf(v) * root + eps);
  }
};

inline AdamStep adam_step(const AdamWArgs& a) {
  const double t = double(a.step);
  return {a.beta1,
          a.beta2,
          a.eps,
          a.grad_scale,
          1.0f - a.lr * a.weight_decay,
          a.lr / float(1.0 - std::pow(double(a.beta1), t)),
          1.0f / float(std::sqrt(1.0 - std::pow(double(a.beta2), t)))};
}

}  // namespace loqal::codec
