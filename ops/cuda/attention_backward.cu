// Backward pass of causal attention. With P = softmax(S), dP = dO V^T, delta = rowsum(dO * O) and
// dS = P * (dP - delta) / sqrt(HS) (Dao et al. 2022, appendix B.4):
//   dQ = dS K,  dK = dS^T Q,  dV = P^T dO,  P recomputed as exp(S - lse).
// Two kernels: one owns queries and adds over keys, the other owns keys and adds over queries. S
// and dP are computed twice, 7 products instead of 5; in return every gradient has one owner, no
// sum depends on the order of blocks, and nothing but delta goes through memory.
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/cuda_ops.h"

namespace loqal {

namespace cuda {
namespace {

/// delta F32[B*NH, T] = dot products of the rows of dout and out, head by head; a warp each.
template <class X>
__global__ void attention_delta_kernel(float* delta, View<const X> dout, View<const X> out,
                                       AttentionArgs a, int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (i >= count) return;
  const int64_t n = i / a.NH, h = i % a.NH;
  const X *g = dout.row(n) + h * a.HS, *o = out.row(n) + h * a.HS;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < a.HS; d += 32) sum += to_float(g[d]) * to_float(o[d]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) delta[(n / a.T * a.NH + h) * a.T + n % a.T] = sum;
}

template <class X, int HP>
constexpr int kBackwardRows = HP <= 64 ? 64 : 32;
template <class X, int HP>
constexpr int kBackwardCols = HP <= 64 && sizeof(X) == 2 ? 64 : 32;

template <class X, int HP>
struct BackwardSizes : TileSizes<X, HP, kBackwardRows<X, HP>, kBackwardCols<X, HP>> {
  using S = TileSizes<X, HP, kBackwardRows<X, HP>, kBackwardCols<X, HP>>;
  static constexpr size_t bytes = S::bytes_of_rows(2 * S::Rows + 2 * S::Cols) + S::bytes_of_scores;
};

/// The block's shared memory: two tiles that it owns, two that pass by, one of scores.
template <class S, class X>
struct BackwardTiles {
  X *own[2], *passing[2];
  float* scores;
  __device__ explicit BackwardTiles(X* shared) {
    own[0] = shared;
    own[1] = own[0] + S::Rows * S::Stride;
    passing[0] = own[1] + S::Rows * S::Stride;
    passing[1] = passing[0] + S::Cols * S::Stride;
    scores = reinterpret_cast<float*>(passing[1] + S::Cols * S::Stride);
  }
};

/// What exp(S - lse) needs of query t: lse in units of log2, or +inf (then P = 0) beyond the end.
__device__ float lse_log2(const float* lse, int t, int T) {
  return t < T ? lse[t] * kLog2e : INFINITY;
}

// One block for some queries of one head: dQ.
template <class X, int HP>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_dq_kernel(View<X> dq, View<const X> dout, const float* lse, const float* delta,
                        View<const X> q, View<const X> k, View<const X> v, AttentionArgs a) {
  using S = BackwardSizes<X, HP>;
  DYN_SMEM(X, shared);
  const BackwardTiles<S, X> tiles(shared);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, h = int(blockIdx.y);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * S::Rows;
  const int64_t row = int64_t(blockIdx.z) * a.T, of_head = (int64_t(blockIdx.z) * a.NH + h) * a.T;
  const int64_t q_column = int64_t(h) * a.HS, kv_column = int64_t(h / a.group) * a.HS;
  const Head<const X> kh(k, row, kv_column, a.T, a.HS, a.wide),
      vh(v, row, kv_column, a.T, a.HS, a.wide);

  float acc[S::R][S::O] = {}, top[S::R], d[S::R], factor[S::R];
  for (int i = 0; i < S::R; i++) {
    const int t = q0 + ty * S::R + i;
    top[i] = lse_log2(lse + of_head, t, a.T);
    d[i] = t < a.T ? delta[of_head + t] : 0.0f;
    factor[i] = a.scale_log2 * kLn2;
  }
  load_tile<S>(tiles.own[0], Head<const X>(q, row, q_column, a.T, a.HS, a.wide), q0, S::Rows);
  load_tile<S>(tiles.own[1], Head<const X>(dout, row, q_column, a.T, a.HS, a.wide), q0, S::Rows);
  const int end = min(a.T, q0 + S::Rows);
  for (int k0 = 0; k0 < end; k0 += S::Cols) {
    __syncthreads();  // the previous tiles have been read
    load_tile<S>(tiles.passing[0], kh, k0, S::Cols);
    load_tile<S>(tiles.passing[1], vh, k0, S::Cols);
    async_commit();
    async_wait<0>();
    __syncthreads();
    float s[S::R][S::C], dp[S::R][S::C];
    dot_rows<S>(s, tiles.own[0], tiles.passing[0]);
    dot_rows<S>(dp, tiles.own[1], tiles.passing[1]);
    for (int i = 0; i < S::R; i++)
      for (int j = 0; j < S::C; j++) {
        const bool seen = k0 + tx + 16 * j <= q0 + ty * S::R + i;
        s[i][j] = seen ? exp2f(s[i][j] * a.scale_log2 - top[i]) * (dp[i][j] - d[i]) : 0.0f;
      }
    share_scores<S>(tiles.scores, s);
    add_product<S>(acc, tiles.scores, tiles.passing[0]);
  }
  store_rows<S>(Head<X>(dq, row, q_column, a.T, a.HS, a.wide), q0, acc, factor);
}

// One block for some keys of one key/value head, over all query heads that read it: dK and dV. Rows
// of the tile of scores are keys here, columns are queries.
template <class X, int HP>
__global__ void __launch_bounds__(kAttentionThreads, sizeof(X) == 2 ? 2 : 1)
    attention_dkv_kernel(View<X> dk, View<X> dv, View<const X> dout, const float* lse,
                         const float* delta, View<const X> q, View<const X> k, View<const X> v,
                         AttentionArgs a) {
  using S = BackwardSizes<X, HP>;
  DYN_SMEM(X, shared);
  const BackwardTiles<S, X> tiles(shared);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, kv_head = int(blockIdx.y);
  const int k0 = int(blockIdx.x) * S::Rows;
  const int64_t row = int64_t(blockIdx.z) * a.T, kv_column = int64_t(kv_head) * a.HS;

  float acc_k[S::R][S::O] = {}, acc_v[S::R][S::O] = {};
  load_tile<S>(tiles.own[0], Head<const X>(k, row, kv_column, a.T, a.HS, a.wide), k0, S::Rows);
  load_tile<S>(tiles.own[1], Head<const X>(v, row, kv_column, a.T, a.HS, a.wide), k0, S::Rows);
  for (int h = kv_head * a.group; h < (kv_head + 1) * a.group; h++) {
    const int64_t q_column = int64_t(h) * a.HS, of_head = (int64_t(blockIdx.z) * a.NH + h) * a.T;
    const Head<const X> qh(q, row, q_column, a.T, a.HS, a.wide),
        gh(dout, row, q_column, a.T, a.HS, a.wide);
    for (int q0 = k0 / S::Cols * S::Cols; q0 < a.T; q0 += S::Cols) {
      __syncthreads();  // the previous tiles have been read
      load_tile<S>(tiles.passing[0], qh, q0, S::Cols);
      load_tile<S>(tiles.passing[1], gh, q0, S::Cols);
      async_commit();
      async_wait<0>();
      __syncthreads();
      float p[S::R][S::C], ds[S::R][S::C];
      dot_rows<S>(p, tiles.own[0], tiles.passing[0]);
      dot_rows<S>(ds, tiles.own[1], tiles.passing[1]);
      for (int j = 0; j < S::C; j++) {
        const int t = q0 + tx + 16 * j;
        const float top = lse_log2(lse + of_head, t, a.T), d = t < a.T ? delta[of_head + t] : 0.0f;
        for (int i = 0; i < S::R; i++) {
          const bool seen = k0 + ty * S::R + i <= t;
          p[i][j] = seen ? exp2f(p[i][j] * a.scale_log2 - top) : 0.0f;
          ds[i][j] = seen ? p[i][j] * (ds[i][j] - d) : 0.0f;
        }
      }
      share_scores<S>(tiles.scores, p);
      add_product<S>(acc_v, tiles.scores, tiles.passing[1]);
      share_scores<S>(tiles.scores, ds);
      add_product<S>(acc_k, tiles.scores, tiles.passing[0]);
    }
  }
  float one[S::R], scale[S::R];
  for (int i = 0; i < S::R; i++) one[i] = 1, scale[i] = a.scale_log2 * kLn2;
  store_rows<S>(Head<X>(dk, row, kv_column, a.T, a.HS, a.wide), k0, acc_k, scale);
  store_rows<S>(Head<X>(dv, row, kv_column, a.T, a.HS, a.wide), k0, acc_v, one);
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                    const Tensor& dout, const Tensor& out, const Tensor& lse,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionShape& s) {
  if (q.numel() == 0) return;
  const int64_t rows = s.B * s.T * s.NH;
  float* delta = static_cast<float*>(workspace(rows * int64_t(sizeof(float))));
  dispatch(q, [&](auto type) {
    using X = decltype(type);
    const bool wide = s.HS % kWide<X> == 0 && in_packs_of(kWide<X>, {dq, dk, dv, dout, q, k, v});
    const AttentionArgs args = attention_args(s.T, s.HS, s.NH, s.NKV, wide);
    launch(attention_delta_kernel<X>, dim3(unsigned(ceil_div(rows, kThreads / 32))), kThreads, 0,
           stream(), delta, view<const X>(dout), view<const X>(out), args, rows);
    with_head_size(s.HS, [&](auto head_size) {
      using S = BackwardSizes<X, head_size>;
      const unsigned tiles = unsigned(ceil_div(s.T, S::Rows));
      const auto dq_kernel = attention_dq_kernel<X, head_size>;
      allow_shared(dq_kernel, S::bytes);
      launch(dq_kernel, dim3(tiles, unsigned(s.NH), unsigned(s.B)), kAttentionThreads, S::bytes,
             stream(), view<X>(dq), view<const X>(dout), pointer<const float>(lse), delta,
             view<const X>(q), view<const X>(k), view<const X>(v), args);
      const auto dkv_kernel = attention_dkv_kernel<X, head_size>;
      allow_shared(dkv_kernel, S::bytes);
      launch(dkv_kernel, dim3(tiles, unsigned(s.NKV), unsigned(s.B)), kAttentionThreads, S::bytes,
             stream(), view<X>(dk), view<X>(dv), view<const X>(dout), pointer<const float>(lse),
             delta, view<const X>(q), view<const X>(k), view<const X>(v), args);
    });
  });
}

}  // namespace loqal
