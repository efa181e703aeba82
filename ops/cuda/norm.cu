// LayerNorm and RMSNorm. Forward: a warp takes a row, whose second and third reading come from L1.
// Backward: the gradients of the weights are sums over rows, kept per block in shared memory by the
// threads that own the columns, and added up over blocks in a second pass.
//
// The residual addition before a norm is no kernel of its own: matmul adds it where it has the sum
// in registers (MatmulArgs::residual), and backward adds into dx, which then is the residual
// stream's gradient (accumulate_dx). A fused residual+norm kernel would read and write the stream
// once more than that.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

constexpr int kRows = kThreads / 32;  // that a block works on at a time: one for each warp

/// Sum over the row's packs of f(first column), by a warp; f returns the sum over one pack.
template <int W, class F>
__device__ float row_sum(int64_t C, const F& f) {
  float sum = 0;
  for (int64_t c = threadIdx.x % 32 * W; c < C; c += 32 * W) sum += f(c);
  return warp_sum(sum);
}

template <class X, int W>
__global__ void __launch_bounds__(kThreads, 2)
    layernorm_forward_kernel(View<X> y, float* mean, float* rstd, View<const X> x, const float* w,
                             const float* b, float eps, int64_t rows, int64_t C) {
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= rows) return;
  const X* in = x.row(row);
  const float m = row_sum<W>(C,
                             [&](int64_t c) {
                               const Floats<W> v = load<W>(in + c);
                               float sum = 0;
                               for (int i = 0; i < W; i++) sum += v[i];
                               return sum;
                             }) /
                  float(C);
  const float variance = row_sum<W>(C,
                                    [&](int64_t c) {
                                      const Floats<W> v = load<W>(in + c);
                                      float sum = 0;
                                      for (int i = 0; i < W; i++) sum += (v[i] - m) * (v[i] - m);
                                      return sum;
                                    }) /
                         float(C);
  const float s = 1.0f / sqrtf(variance + eps);
  for (int64_t c = threadIdx.x % 32 * W; c < C; c += 32 * W) {
    Floats<W> v = load<W>(in + c);
    const Floats<W> weight = load<W>(w + c), bias = load<W>(b + c);
    for (int i = 0; i < W; i++) v[i] = (v[i] - m) * s * weight[i] + bias[i];
    store(y.row(row) + c, v);
  }
  if (threadIdx.x % 32 == 0) mean[row] = m, rstd[row] = s;
}

template <class X, int W>
__global__ void __launch_bounds__(kThreads, 2)
    rmsnorm_forward_kernel(View<X> y, float* rstd, View<const X> x, const float* w, float eps,
                           int64_t rows, int64_t C) {
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= rows) return;
  const X* in = x.row(row);
  const float squares = row_sum<W>(C, [&](int64_t c) {
    const Floats<W> v = load<W>(in + c);
    float sum = 0;
    for (int i = 0; i < W; i++) sum += v[i] * v[i];
    return sum;
  });
  const float s = 1.0f / sqrtf(squares / float(C) + eps);
  for (int64_t c = threadIdx.x % 32 * W; c < C; c += 32 * W) {
    Floats<W> v = load<W>(in + c);
    const Floats<W> weight = load<W>(w + c);
    for (int i = 0; i < W; i++) v[i] = v[i] * s * weight[i];
    store(y.row(row) + c, v);
  }
  if (threadIdx.x % 32 == 0) rstd[row] = s;
}

// Both norms. With xhat = (x - mean) rstd and g = dy w:
//   dx (+)= rstd (g - mean(g) - xhat mean(g xhat)),  dw = sum over rows of dy xhat,  db = sum dy.
// RMSNorm has neither mean nor db. partials [blocks, C or 2C]: the block's share of dw, then of db.
// Each thread owns the packs threadIdx.x, + blockDim.x ... of the columns, in the sums and in dx.
template <class X, int W, bool kCentered>
__global__ void __launch_bounds__(kThreads, 2)
    norm_backward_kernel(View<X> dx, float* partials, View<const X> dy, View<const X> x,
                         const float* w, const float* mean, const float* rstd, int64_t rows,
                         int64_t C, bool accumulate) {
  DYN_SMEM(float, shared);
  __shared__ float mean_of[kRows], rstd_of[kRows], g_of[kRows], gx_of[kRows];
  float *dw_sum = shared, *db_sum = shared + C;
  const int warp = threadIdx.x / 32;
  Floats<W> zero;
  for (int i = 0; i < W; i++) zero[i] = 0;
  for (int64_t c = threadIdx.x * W; c < C; c += kThreads * W) {
    store(dw_sum + c, zero);
    if (kCentered) store(db_sum + c, zero);
  }

  for (int64_t first = int64_t(blockIdx.x) * kRows; first < rows;
       first += int64_t(gridDim.x) * kRows) {
    if (first + warp < rows) {  // the same for all lanes of a warp
      const int64_t row = first + warp;
      const float m = kCentered ? mean[row] : 0.0f, s = rstd[row];
      float g_sum = 0;
      const float gx = row_sum<W>(C, [&](int64_t c) {
        const Floats<W> d = load<W>(dy.row(row) + c), v = load<W>(x.row(row) + c);
        const Floats<W> weight = load<W>(w + c);
        float sum = 0;
        for (int i = 0; i < W; i++) {
          const float g = d[i] * weight[i];
          g_sum += g;
          sum += g * ((v[i] - m) * s);
        }
        return sum;
      });
      const float g = kCentered ? warp_sum(g_sum) : 0.0f;
      if (threadIdx.x % 32 == 0)
        mean_of[warp] = m, rstd_of[warp] = s, g_of[warp] = g / float(C),
        gx_of[warp] = gx / float(C);
    }
    __syncthreads();
    const int count = int(min(int64_t(kRows), rows - first));
    for (int64_t c = threadIdx.x * W; c < C; c += kThreads * W) {
      const Floats<W> weight = load<W>(w + c);
      Floats<W> dw = load<W>(dw_sum + c), db = kCentered ? load<W>(db_sum + c) : zero;
      for (int r = 0; r < count; r++) {
        const Floats<W> d = load<W>(dy.row(first + r) + c), v = load<W>(x.row(first + r) + c);
        Floats<W> grad = accumulate ? load<W>(dx.row(first + r) + c) : zero;
        for (int i = 0; i < W; i++) {
          const float xhat = (v[i] - mean_of[r]) * rstd_of[r];
          dw[i] += d[i] * xhat;
          db[i] += d[i];
          grad[i] += rstd_of[r] * (d[i] * weight[i] - g_of[r] - xhat * gx_of[r]);
        }
        store(dx.row(first + r) + c, grad);
      }
      store(dw_sum + c, dw);
      if (kCentered) store(db_sum + c, db);
    }
    __syncthreads();  // before the next rows' constants
  }

  float* mine = partials + int64_t(blockIdx.x) * (kCentered ? 2 : 1) * C;
  for (int64_t c = threadIdx.x * W; c < C; c += kThreads * W) {
    store(mine + c, load<W>(dw_sum + c));
    if (kCentered) store(mine + C + c, load<W>(db_sum + c));
  }
}

/// partials [chunks, C]: column sums of rows_per_chunk rows each; a block takes 32 packs of columns
/// of one chunk, its warps every kRows-th row.
template <class X, int W>
__global__ void __launch_bounds__(kThreads, 2)
    column_sums_kernel(float* partials, View<const X> x, int64_t rows, int64_t C,
                       int64_t rows_per_chunk) {
  __shared__ float sums[kRows][32 * W];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = (int64_t(blockIdx.x) * 32 + lane) * W;
  const int64_t first = int64_t(blockIdx.y) * rows_per_chunk;
  const int64_t last = min(rows, first + rows_per_chunk);
  Floats<W> sum;
  for (int i = 0; i < W; i++) sum[i] = 0;
  for (int64_t row = first + warp; c < C && row < last; row += kRows) {
    const Floats<W> v = load<W>(x.row(row) + c);
    for (int i = 0; i < W; i++) sum[i] += v[i];
  }
  for (int i = 0; i < W; i++) sums[warp][lane * W + i] = sum[i];
  __syncthreads();
  if (warp > 0 || c >= C) return;
  for (int other = 1; other < kRows; other++)
    for (int i = 0; i < W; i++) sum[i] += sums[other][lane * W + i];
  store(partials + blockIdx.y * C + c, sum);
}

constexpr int64_t kMostPartials = 256;

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_layernorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x,
                                   const Tensor& w, const Tensor& b, float eps) {
  if (x.numel() == 0) return;
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({y, x, w, b}, [&](auto width) {
      launch(layernorm_forward_kernel<X, width>, dim3(unsigned(ceil_div(x.rows, kRows))), kThreads,
             0, stream(), view<X>(y), stats.row<float>(0), stats.row<float>(1), view<const X>(x),
             pointer<const float>(w), pointer<const float>(b), eps, x.rows, x.cols);
    });
  });
}

void CudaOps::do_rmsnorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x,
                                 const Tensor& w, float eps) {
  if (x.numel() == 0) return;
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({y, x, w}, [&](auto width) {
      launch(rmsnorm_forward_kernel<X, width>, dim3(unsigned(ceil_div(x.rows, kRows))), kThreads, 0,
             stream(), view<X>(y), pointer<float>(stats), view<const X>(x), pointer<const float>(w),
             eps, x.rows, x.cols);
    });
  });
}

template <bool kCentered>
void CudaOps::norm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy,
                            const Tensor& x, const Tensor& w, const float* mean, const float* rstd,
                            bool accumulate_dx, bool accumulate_dw) {
  if (x.numel() == 0) return;
  const int64_t C = x.cols, width_of_sums = (kCentered ? 2 : 1) * C;
  const int64_t blocks = std::min(kMostPartials, ceil_div(x.rows, kRows));
  const size_t shared = size_t(width_of_sums) * sizeof(float);
  float* partials = static_cast<float*>(workspace(blocks * width_of_sums * int64_t(sizeof(float))));
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({dx, dy, x, w}, [&](auto width) {
      const auto kernel = norm_backward_kernel<X, width, kCentered>;
      allow_shared(kernel, shared);
      launch(kernel, dim3(unsigned(blocks)), kThreads, shared, stream(), view<X>(dx), partials,
             view<const X>(dy), view<const X>(x), pointer<const float>(w), mean, rstd, x.rows, C,
             accumulate_dx);
    });
  });
  add_partials(dw, partials, blocks, width_of_sums, 0, accumulate_dw);
  if (kCentered) add_partials(db, partials, blocks, width_of_sums, C, accumulate_dw);
}

void CudaOps::do_layernorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db,
                                    const Tensor& dy, const Tensor& x, const Tensor& w,
                                    const Tensor& stats, bool accumulate_dx, bool accumulate_dw) {
  norm_backward<true>(dx, dw, db, dy, x, w, stats.row<float>(0), stats.row<float>(1), accumulate_dx,
                      accumulate_dw);
}

void CudaOps::do_rmsnorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy,
                                  const Tensor& x, const Tensor& w, const Tensor& stats,
                                  bool accumulate_dx, bool accumulate_dw) {
  norm_backward<false>(dx, dw, {}, dy, x, w, nullptr, stats.as<float>(), accumulate_dx,
                       accumulate_dw);
}

void CudaOps::do_bias_backward(const Tensor& db, const Tensor& dy, bool accumulate) {
  if (dy.cols == 0) return;
  constexpr int64_t most = 64;  // chunks
  const int64_t rows = std::max<int64_t>(4 * kRows, ceil_div(dy.rows, most));
  const int64_t chunks = std::max<int64_t>(1, ceil_div(dy.rows, rows));
  float* partials = static_cast<float*>(workspace(chunks * dy.cols * int64_t(sizeof(float))));
  dispatch(dy, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({dy}, [&](auto width) {
      const dim3 grid(unsigned(ceil_div(dy.cols, 32 * width)), unsigned(chunks));
      launch(column_sums_kernel<X, width>, grid, kThreads, 0, stream(), partials, view<const X>(dy),
             dy.rows, dy.cols, rows);
    });
  });
  add_partials(db, partials, chunks, dy.cols, 0, accumulate);
}

}  // namespace loqal
