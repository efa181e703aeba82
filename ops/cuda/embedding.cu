// Token and position embedding. The backward pass adds the rows of equal tokens: the tokens are
// sorted (stably), then each run of equal ones has one owner that adds its rows in their order. So
// no two threads meet and no atomics are needed.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/sort.h"

namespace loqal {

namespace cuda {
namespace {

template <class X, int W>
__global__ void embedding_forward_kernel(View<X> x, const int32_t* tokens, View<const X> wte,
                                         View<const X> wpe, int64_t T, int64_t rows,
                                         int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t n, int64_t pack) {
    Floats<W> v = load<W>(wte.row(tokens[n]) + pack * W);
    if (wpe) {
      const Floats<W> p = load<W>(wpe.row(n % T) + pack * W);
      for (int i = 0; i < W; i++) v[i] += p[i];
    }
    store(x.row(n) + pack * W, v);
  });
}

__global__ void count_up_kernel(int32_t* to, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) to[i] = i;
}

/// Row i of the grid is the i-th sorted token; the first of each run of equal ones does the work.
template <class X, int W>
__global__ void token_gradient_kernel(View<float> dwte, View<const X> dx, const uint32_t* tokens,
                                      const int32_t* positions, bool accumulate, int64_t rows,
                                      int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t i, int64_t pack) {
    const uint32_t token = tokens[i];
    if (i > 0 && tokens[i - 1] == token) return;
    float* to = dwte.row(token) + pack * W;
    Floats<W> sum;
    for (int j = 0; j < W; j++) sum[j] = accumulate ? to[j] : 0.0f;
    for (; i < rows && tokens[i] == token; i++) {
      const Floats<W> g = load<W>(dx.row(positions[i]) + pack * W);
      for (int j = 0; j < W; j++) sum[j] += g[j];
    }
    store(to, sum);
  });
}

/// Row t of the grid is a position; its gradient is the sum over the sequences of the batch.
template <class X, int W>
__global__ void position_gradient_kernel(View<float> dwpe, View<const X> dx, bool accumulate,
                                         int64_t N, int64_t T, int64_t packs) {
  for_each_pack(T, packs, [&](int64_t t, int64_t pack) {
    float* to = dwpe.row(t) + pack * W;
    Floats<W> sum;
    for (int j = 0; j < W; j++) sum[j] = accumulate ? to[j] : 0.0f;
    for (int64_t n = t; n < N; n += T) {
      const Floats<W> g = load<W>(dx.row(n) + pack * W);
      for (int j = 0; j < W; j++) sum[j] += g[j];
    }
    store(to, sum);
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_embedding_forward(const Tensor& x, const Tensor& tokens, const Tensor& wte,
                                   const Tensor& wpe, int64_t T) {
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({x, wte, wpe}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(x.rows, x.cols / W);
      if (g.empty()) return;
      launch(embedding_forward_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(x),
             pointer<const int32_t>(tokens), view<const X>(wte), view<const X>(wpe), T, g.rows,
             g.packs);
    });
  });
}

void CudaOps::do_embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dx,
                                    const Tensor& tokens, int64_t T, bool accumulate_wte,
                                    bool accumulate_wpe) {
  if (!accumulate_wte) do_fill(dwte, 0);
  if (dwpe && !accumulate_wpe) do_fill(dwpe, 0);
  if (dx.numel() == 0) return;
  LOQAL_ASSERT(dx.rows < INT32_MAX, dx.rows, " tokens");
  const int n = int(dx.rows);
  const size_t bytes = sort_bytes(n);
  const int64_t ints = ceil_div(n, 4) * 4;  // keeps the parts of the workspace aligned
  uint32_t* sorted = static_cast<uint32_t*>(workspace(3 * ints * 4 + int64_t(bytes)));
  int32_t* positions = reinterpret_cast<int32_t*>(sorted + ints);
  int32_t* numbers = positions + ints;
  launch(count_up_kernel, dim3(unsigned(ceil_div(n, kThreads))), kThreads, 0, stream(), numbers, n);
  sort_pairs(sorted, positions, reinterpret_cast<const uint32_t*>(pointer<int32_t>(tokens)),
             numbers, n, uint32_t(dwte.rows), numbers + ints, bytes, stream());
  dispatch(dx, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({dx, dwte, dwpe}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(n, dx.cols / W);
      launch(token_gradient_kernel<X, W>, g.grid, g.block, 0, stream(), view<float>(dwte),
             view<const X>(dx), sorted, positions, accumulate_wte, g.rows, g.packs);
      if (!dwpe) return;
      const PackGrid p(T, dx.cols / W);
      launch(position_gradient_kernel<X, W>, p.grid, p.block, 0, stream(), view<float>(dwpe),
             view<const X>(dx), accumulate_wpe, dx.rows, T, p.packs);
    });
  });
}

}  // namespace loqal
