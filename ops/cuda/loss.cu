// Output projection and cross-entropy, fused and chunked over rows: B*T*V logits never exist.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

/// Running maximum m and sum of exp(x - m) (Milakov & Gimelshein 2018). A NaN reaches the sum;
/// infinities at the front do not become one.
struct SoftmaxSum {
  float m = -INFINITY, sum = 0;
  __device__ void add(float x) {
    if (x > m) sum *= expf(m - x), m = x;
    sum += x == m ? 1.0f : expf(x - m);
  }
};

// One block for each row of logits F32[rows, V]: nll = log sum exp(l) - l[target]. With `gradients`
// the row becomes scale (softmax - onehot) in type X, written from the row's start. That is in
// place: X is no wider than float, so that in each round of the block the writes stay behind what
// all its threads have read - after a barrier, where X is narrower.
template <class X, int W>
__global__ void __launch_bounds__(1024)
    cross_entropy_kernel(float* nll, View<float> logits, const int32_t* targets, int64_t V,
                         float scale, bool gradients) {
  float* row = logits.row(blockIdx.x);
  X* out = reinterpret_cast<X*>(row);
  const int target = targets[blockIdx.x];
  const int64_t even = V / W * W, tail = even + threadIdx.x;  // the tail: less than one pack
  const int64_t step = int64_t(blockDim.x) * W;
  if (target < 0) {
    if (threadIdx.x == 0) nll[blockIdx.x] = 0;
    for (int64_t i = threadIdx.x; gradients && i < V; i += blockDim.x) out[i] = from_float<X>(0.0f);
    return;
  }
  SoftmaxSum mine;
  for (int64_t i = threadIdx.x * W; i < even; i += step) {
    const Floats<W> l = load<W>(row + i);
    for (int j = 0; j < W; j++) mine.add(l[j]);
  }
  if (tail < V) mine.add(row[tail]);
  const float of_tail = tail < V ? row[tail] : 0.0f, of_target = row[target];
  const float m = block_reduce(mine.m, Max(), -INFINITY);
  // A thread without elements has sum 0 and m = -inf: 0 exp(-inf) adds nothing.
  const float sum = block_reduce(mine.sum * expf(mine.m - m), Sum(), 0.0f);
  if (threadIdx.x == 0) nll[blockIdx.x] = m - of_target + logf(sum);
  if (!gradients) return;

  const float factor = scale / sum;
  const auto gradient = [&](float l, int64_t i) {
    return expf(l - m) * factor - (i == target ? scale : 0.0f);
  };
  for (int64_t base = 0; base < even; base += step) {
    const int64_t i = base + threadIdx.x * W;
    Floats<W> l;
    if (i < even) l = load<W>(row + i);
    if (sizeof(X) < sizeof(float)) __syncthreads();
    if (i >= even) continue;
    for (int j = 0; j < W; j++) l[j] = gradient(l[j], i + j);
    store(out + i, l);
  }
  if (sizeof(X) < sizeof(float)) __syncthreads();
  if (tail < V) out[tail] = from_float<X>(gradient(of_tail, tail));
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_linear_cross_entropy(const Tensor& nll, const Tensor& dx, const Tensor& dw,
                                      const Tensor& x, const Tensor& w, const Tensor& targets,
                                      const Tensor& scratch, float scale, bool accumulate_dw) {
  // Rows of logits at a stride that tensor cores and 128-bit accesses like: V itself may be odd,
  // as GPT-2's 50257 is. One row less may fit.
  const int64_t V = w.rows, padded = ceil_div(V, 64) * 64;
  const int64_t padded_rows = scratch.numel() / padded;
  const bool pad = padded_rows > 0;
  const Tensor chunk(scratch.data, DType::F32, pad ? padded_rows : scratch.rows, V,
                     pad ? padded : V);
  const unsigned threads = V >= 8192 ? 1024 : kThreads;
  for (int64_t begin = 0; begin < x.rows; begin += chunk.rows) {
    const int64_t rows = std::min(chunk.rows, x.rows - begin);
    const Tensor in = x.row_slice(begin, rows), logits = chunk.row_slice(0, rows);
    matmul(logits, in, w, {.transpose_b = true});
    dispatch(x, [&](auto type) {
      using X = decltype(type);
      with_width<4>({Tensor(logits.data, DType::F32, rows, V / 4 * 4, logits.ld)}, [&](auto width) {
        launch(cross_entropy_kernel<X, width>, dim3(unsigned(rows)), threads, 0, stream(),
               pointer<float>(nll) + begin, view<float>(logits),
               pointer<const int32_t>(targets) + begin, V, scale, bool(dx));
      });
    });
    if (!dx) continue;
    const Tensor dlogits(logits.data, x.dtype, rows, V, logits.ld * 4 / int64_t(size_of(x.dtype)));
    matmul(dx.row_slice(begin, rows), dlogits, w);
    matmul(dw, dlogits, in, {.transpose_a = true, .accumulate = accumulate_dw || begin > 0});
  }
}

}  // namespace loqal
