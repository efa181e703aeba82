// AdamW, one pass over the arrays; the bf16 copy for the next forward pass is written on the way.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;
using simd::vu;

namespace {

// x, elements i, i + 1, ... of a tensor, i a multiple of kWidth, rounded to bf16 by the stream.
vf round_stochastic(vf x, const PhiloxStream& stream, int64_t i) {
  vu random;
  for (int j = 0; j < simd::kWidth; j += 8) {
    const Philox4 block = stream.block(uint64_t(i + j) / 8);
    for (int k = 0; k < 8; k++) random[j + k] = PhiloxStream::half(block, uint64_t(k));
  }
  const vu bits = vu(x), rounded = (bits + random) & 0xFFFF0000u;
  return vf((bits & 0x7F800000u) == 0x7F800000u ? bits : rounded);
}

}  // namespace

void CpuOps::do_adamw(const Tensor& p, const Tensor& copy, const Tensor& g, const Tensor& m,
                      const Tensor& v, const AdamWArgs& args) {
  if (p.dtype == DType::F32) adamw(p.as<float>(), p.numel(), copy, g, m, v, args);
  else adamw(p.as<bf16>(), p.numel(), copy, g, m, v, args);
}

template <class P>
void CpuOps::adamw(P* pp, int64_t count, const Tensor& copy, const Tensor& g, const Tensor& m,
                   const Tensor& v, const AdamWArgs& args) {
  const double t = double(args.step);
  const float correction1 = float(1.0 - std::pow(double(args.beta1), t));
  const float correction2 = float(std::sqrt(1.0 - std::pow(double(args.beta2), t)));
  const vf beta1 = simd::splat(args.beta1), beta2 = simd::splat(args.beta2),
           scale = simd::splat(args.grad_scale);
  const vf decay = simd::splat(1.0f - args.lr * args.weight_decay),
           rate = simd::splat(args.lr / correction1);
  const vf root = simd::splat(1.0f / correction2), eps = simd::splat(args.eps);
  float *pm = m.as<float>(), *pv = v.as<float>();
  const float* pg = g.as<float>();
  bf16* half = copy ? copy.as<bf16>() : nullptr;

  const auto element = [&](int64_t i, auto load, auto put) {
    const vf grad = load(pg) * scale;
    const vf m1 = beta1 * load(pm) + (1.0f - beta1) * grad;
    const vf v1 = beta2 * load(pv) + (1.0f - beta2) * (grad * grad);
    vf denominator;
    for (int j = 0; j < simd::kWidth; j++) denominator[j] = std::sqrt(v1[j]);
    vf updated = load(pp) * decay - rate * m1 / (denominator * root + eps);
    if constexpr (std::is_same_v<P, bf16>) updated = round_stochastic(updated, args.rounding, i);
    put(pm, m1);
    put(pv, v1);
    put(pp, updated);
    if (half) put(half, updated);
  };
  pool_.chunks(count, kTaskElements, [&](int64_t first, int64_t last) {
    simd::sweep(
        last - first,
        [&](int64_t k) {
          const int64_t i = first + k;
          element(
              i, [i](const auto* x) { return simd::load(x + i); },
              [i](auto* x, vf value) { simd::store(x + i, value); });
        },
        [&](int64_t k, int n) {
          const int64_t i = first + k;
          element(
              i, [i, n](const auto* x) { return simd::load_part(x + i, n); },
              [i, n](auto* x, vf value) { simd::store_part(x + i, value, n); });
        });
  });
}

}  // namespace loqal
