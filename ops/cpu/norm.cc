// LayerNorm and RMSNorm. Statistics in fp32; weight gradients by fixed chunks of rows.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;

namespace {

template <class X>
void layernorm_row(int64_t C, X* y, const X* x, const float* w, const float* b, float eps,
                   float& mean, float& rstd) {
  mean = simd::map_sum(
             C, [](vf v) { return v; }, x) /
         float(C);
  const vf m = simd::splat(mean);
  const float var = simd::map_sum(
                        C, [m](vf v) { return (v - m) * (v - m); }, x) /
                    float(C);
  rstd = 1.0f / std::sqrt(var + eps);
  const vf s = simd::splat(rstd);
  simd::map(
      C, [m, s](vf v, vf weight, vf bias) { return (v - m) * s * weight + bias; }, y, x, w, b);
}

// g = dy * w; dx = rstd (g - mean(g) - xhat mean(g xhat)).
template <class X>
void layernorm_row_backward(int64_t C, X* dx, float* dw, float* db, const X* dy, const X* x,
                            const float* w, float mean, float rstd, bool accumulate) {
  const vf m = simd::splat(mean), s = simd::splat(rstd);
  const float g = simd::map_sum(
                      C, [](vf d, vf weight) { return d * weight; }, dy, w) /
                  float(C);
  const float gx =
      simd::map_sum(
          C, [m, s](vf d, vf weight, vf v) { return d * weight * ((v - m) * s); }, dy, w, x) /
      float(C);
  const vf g_mean = simd::splat(g), gx_mean = simd::splat(gx);
  simd::map(
      C, [m, s](vf sum, vf d, vf v) { return sum + d * ((v - m) * s); }, dw, dw, dy, x);
  simd::map(
      C, [](vf sum, vf d) { return sum + d; }, db, db, dy);
  const auto grad = [&](vf d, vf weight, vf v) {
    return s * (d * weight - g_mean - (v - m) * s * gx_mean);
  };
  if (accumulate)
    simd::map(
        C, [&](vf old, vf d, vf weight, vf v) { return old + grad(d, weight, v); }, dx, dx, dy, w,
        x);
  else simd::map(C, grad, dx, dy, w, x);
}

// g = dy * w; dx = rstd (g - x rstd^2 mean(g x)).
template <class X>
void rmsnorm_row_backward(int64_t C, X* dx, float* dw, const X* dy, const X* x, const float* w,
                          float rstd, bool accumulate) {
  const vf s = simd::splat(rstd);
  const float gx = simd::map_sum(
                       C, [](vf d, vf weight, vf v) { return d * weight * v; }, dy, w, x) /
                   float(C);
  const vf scale = simd::splat(gx * rstd * rstd);
  simd::map(
      C, [s](vf sum, vf d, vf v) { return sum + d * (v * s); }, dw, dw, dy, x);
  const auto grad = [&](vf d, vf weight, vf v) { return s * (d * weight - v * scale); };
  if (accumulate)
    simd::map(
        C, [&](vf old, vf d, vf weight, vf v) { return old + grad(d, weight, v); }, dx, dx, dy, w,
        x);
  else simd::map(C, grad, dx, dy, w, x);
}

}  // namespace

void CpuOps::do_layernorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x,
                                  const Tensor& w, const Tensor& b, float eps) {
  float *mean = stats.row<float>(0), *rstd = stats.row<float>(1);
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    for_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r++)
        layernorm_row(x.cols, y.row<X>(r), x.row<X>(r), w.as<float>(), b.as<float>(), eps, mean[r],
                      rstd[r]);
    });
  });
}

void CpuOps::do_layernorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db,
                                   const Tensor& dy, const Tensor& x, const Tensor& w,
                                   const Tensor& stats, bool accumulate_dx, bool accumulate_dw) {
  const float *mean = stats.row<float>(0), *rstd = stats.row<float>(1);
  const int64_t C = x.cols;
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    column_sums(
        x.rows, 2 * C, {dw, db}, accumulate_dw, [&](int64_t first, int64_t last, float* sums) {
          for (int64_t r = first; r < last; r++)
            layernorm_row_backward(C, dx.row<X>(r), sums, sums + C, dy.row<X>(r), x.row<X>(r),
                                   w.as<float>(), mean[r], rstd[r], accumulate_dx);
        });
  });
}

void CpuOps::do_rmsnorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x,
                                const Tensor& w, float eps) {
  float* rstd = stats.as<float>();
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    for_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r++) {
        const X* in = x.row<X>(r);
        const float mean = simd::map_sum(
                               x.cols, [](vf v) { return v * v; }, in) /
                           float(x.cols);
        rstd[r] = 1.0f / std::sqrt(mean + eps);
        const vf s = simd::splat(rstd[r]);
        simd::map(
            x.cols, [s](vf v, vf weight) { return v * s * weight; }, y.row<X>(r), in,
            w.as<float>());
      }
    });
  });
}

void CpuOps::do_rmsnorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy,
                                 const Tensor& x, const Tensor& w, const Tensor& stats,
                                 bool accumulate_dx, bool accumulate_dw) {
  const float* rstd = stats.as<float>();
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    column_sums(x.rows, x.cols, {dw}, accumulate_dw, [&](int64_t first, int64_t last, float* sums) {
      for (int64_t r = first; r < last; r++)
        rmsnorm_row_backward(x.cols, dx.row<X>(r), sums, dy.row<X>(r), x.row<X>(r), w.as<float>(),
                             rstd[r], accumulate_dx);
    });
  });
}

}  // namespace loqal
