// AdamW, one pass over the five arrays; the bf16 copy for the next forward pass is written on the
// way.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;

void CpuOps::do_adamw(const Tensor& p, const Tensor& copy, const Tensor& g, const Tensor& m,
                      const Tensor& v, const AdamWArgs& args) {
  const double t = double(args.step);
  const float correction1 = float(1.0 - std::pow(double(args.beta1), t));
  const float correction2 = float(std::sqrt(1.0 - std::pow(double(args.beta2), t)));
  const vf beta1 = simd::splat(args.beta1), beta2 = simd::splat(args.beta2),
           scale = simd::splat(args.grad_scale);
  const vf decay = simd::splat(1.0f - args.lr * args.weight_decay),
           rate = simd::splat(args.lr / correction1);
  const vf root = simd::splat(1.0f / correction2), eps = simd::splat(args.eps);
  float *pp = p.as<float>(), *pm = m.as<float>(), *pv = v.as<float>();
  const float* pg = g.as<float>();
  bf16* half = copy ? copy.as<bf16>() : nullptr;

  const auto element = [&](auto load, auto put) {
    const vf grad = load(pg) * scale;
    const vf m1 = beta1 * load(pm) + (1.0f - beta1) * grad;
    const vf v1 = beta2 * load(pv) + (1.0f - beta2) * (grad * grad);
    vf denominator;
    for (int j = 0; j < simd::kWidth; j++) denominator[j] = std::sqrt(v1[j]);
    const vf updated = load(pp) * decay - rate * m1 / (denominator * root + eps);
    put(pm, m1);
    put(pv, v1);
    put(pp, updated);
    if (half) put(half, updated);
  };
  pool_.chunks(p.numel(), kTaskElements, [&](int64_t first, int64_t last) {
    simd::sweep(
        last - first,
        [&](int64_t k) {
          const int64_t i = first + k;
          element([i](const float* x) { return simd::load(x + i); },
                  [i](auto* x, vf value) { simd::store(x + i, value); });
        },
        [&](int64_t k, int n) {
          const int64_t i = first + k;
          element([i, n](const float* x) { return simd::load_part(x + i, n); },
                  [i, n](auto* x, vf value) { simd::store_part(x + i, value, n); });
        });
  });
}

}  // namespace loqal
