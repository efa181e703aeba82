// AdamW, one pass over the arrays; the bf16 copy for the next forward pass is written on the way.
// 28 bytes move per parameter (30 with the copy): p, m, v read and written, g read.
#include <cmath>

#include "core/philox.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

/// The step's constants: decay = 1 - lr wd, rate = lr / (1 - b1^t), root = 1 / sqrt(1 - b2^t).
struct AdamW {
  float beta1, beta2, eps, scale, decay, rate, root;
};

template <int W, class P>
__global__ void adamw_kernel(P* p, bf16_t* copy, const float* g, float* m, float* v, AdamW a,
                             PhiloxStream rounding, int64_t first, int64_t packs) {
  for_each_pack(1, packs, [&](int64_t, int64_t pack) {
    const int64_t at = pack * W, element = first + at;
    Floats<W> pw = load<W>(p + at), mw = load<W>(m + at), vw = load<W>(v + at);
    const Floats<W> gw = load<W>(g + at);
    for (int i = 0; i < W; i++) {
      const float grad = gw[i] * a.scale;
      mw[i] = a.beta1 * mw[i] + (1.0f - a.beta1) * grad;
      vw[i] = a.beta2 * vw[i] + (1.0f - a.beta2) * (grad * grad);
      pw[i] = pw[i] * a.decay - a.rate * mw[i] / (sqrtf(vw[i]) * a.root + a.eps);
    }
    if constexpr (std::is_same_v<P, bf16_t>) {
      const Philox4 block = rounding.block(uint64_t(element) / 8);  // W divides 8
      for (int i = 0; i < W; i++)
        pw[i] = round_stochastic_bf16(pw[i], PhiloxStream::half(block, uint64_t(element + i)));
    }
    store(p + at, pw);
    store(m + at, mw);
    store(v + at, vw);
    if (copy) store(copy + at, pw);
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_adamw(const Tensor& p, const Tensor& copy, const Tensor& g, const Tensor& m,
                       const Tensor& v, const AdamWArgs& args) {
  const double t = double(args.step);
  const float correction1 = float(1.0 - std::pow(double(args.beta1), t));
  const float correction2 = float(std::sqrt(1.0 - std::pow(double(args.beta2), t)));
  const AdamW constants = {args.beta1,
                           args.beta2,
                           args.eps,
                           args.grad_scale,
                           1.0f - args.lr * args.weight_decay,
                           args.lr / correction1,
                           1.0f / correction2};
  // Contiguous, so one row: what does not fill a pack is done element by element.
  const auto flat = [](const Tensor& x, int64_t first, int64_t count) {
    return x ? Tensor(x.data, x.dtype, 1, x.numel()).col_slice(first, count) : Tensor{};
  };
  const auto update = [&](auto width, int64_t first, int64_t count) {
    constexpr int W = width;
    const PackGrid grid(1, count / W);
    if (grid.empty()) return;
    dispatch(p, [&](auto type) {
      using P = decltype(type);
      launch(adamw_kernel<W, P>, grid.grid, grid.block, 0, stream(),
             pointer<P>(flat(p, first, count)), pointer<bf16_t>(flat(copy, first, count)),
             pointer<float>(flat(g, first, count)), pointer<float>(flat(m, first, count)),
             pointer<float>(flat(v, first, count)), constants, args.rounding, first, grid.packs);
    });
  };
  const int64_t n = p.numel(), even = n / 4 * 4;
  with_width<4>(
      {flat(p, 0, even), flat(copy, 0, even), flat(g, 0, even), flat(m, 0, even), flat(v, 0, even)},
      [&](auto width) { update(width, 0, even); });
  update(std::integral_constant<int, 1>{}, even, n - even);
}

}  // namespace loqal
