// Output projection and cross-entropy, fused and chunked over rows: B*T*V logits never exist.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;

namespace {

// One row of logits: returns its nll. If `grad`, the row becomes scale * (softmax - onehot) in type
// X, written from the row's start (X is no wider than float, so writing never overtakes reading).
template <class X>
float cross_entropy_row(int64_t V, float* logits, int32_t target, float scale, bool grad) {
  X* out = reinterpret_cast<X*>(logits);
  if (target < 0) {
    if (grad) std::fill_n(out, V, from_float<X>(0.0f));
    return 0;
  }
  vf top = simd::splat(-INFINITY);
  float peak = -INFINITY;
  int64_t i = 0;
  for (; i + simd::kWidth <= V; i += simd::kWidth) top = simd::max(top, simd::load(logits + i));
  for (; i < V; i++) peak = std::max(peak, logits[i]);
  peak = std::max(peak, simd::max_lane(top));
  const float of_target = logits[target];
  const vf shift = simd::splat(peak);
  simd::map(
      V, [shift](vf v) { return simd::exp(v - shift); }, logits, logits);
  const float sum = simd::map_sum(
      V, [](vf v) { return v; }, logits);
  if (grad) {
    const vf factor = simd::splat(scale / sum);
    const float at_target = scale * (logits[target] / sum - 1.0f);
    simd::map(
        V, [factor](vf v) { return v * factor; }, out, logits);
    out[target] = from_float<X>(at_target);
  }
  return peak - of_target + std::log(sum);
}

}  // namespace

void CpuOps::do_linear_cross_entropy(const Tensor& nll, const Tensor& dx, const Tensor& dw,
                                     const Tensor& x, const Tensor& w, const Tensor& targets,
                                     const Tensor& scratch, float scale, bool accumulate_dw) {
  const int64_t V = w.rows;
  const int32_t* target = targets.as<int32_t>();
  float* loss = nll.as<float>();
  for (int64_t begin = 0; begin < x.rows; begin += scratch.rows) {
    const int64_t rows = std::min(scratch.rows, x.rows - begin);
    const Tensor in = x.row_slice(begin, rows), logits = scratch.row_slice(0, rows);
    matmul(logits, in, w, {.transpose_b = true});
    dispatch(x, [&](auto type) {
      using X = decltype(type);
      for_rows(rows, V, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++)
          loss[begin + r] =
              cross_entropy_row<X>(V, logits.row<float>(r), target[begin + r], scale, bool(dx));
      });
    });
    if (!dx) continue;
    const Tensor dlogits(scratch.data, x.dtype, rows, V,
                         scratch.ld * 4 / int64_t(size_of(x.dtype)));
    matmul(dx.row_slice(begin, rows), dlogits, w);
    matmul(dw, dlogits, in, {.transpose_a = true, .accumulate = accumulate_dw || begin > 0});
  }
}

}  // namespace loqal
