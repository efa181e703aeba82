// RoPE, and the forward pass of causal attention by tiles with online softmax (Milakov & Gimelshein
// 2018; Dao et al. 2022): T x T scores exist only as one tile at a time, in registers.
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/cuda_ops.h"

namespace loqal {

namespace cuda {
namespace {

// A pack of the first half of a head and its partner in the second.
template <class X, int W>
__global__ void rope_kernel(View<X> x, const float* table, int64_t T, int HS, float sign,
                            int64_t rows, int64_t packs) {
  const int half = HS / 2, packs_per_head = half / W;
  for_each_pack(rows, packs, [&](int64_t n, int64_t pack) {
    const int64_t i = pack % packs_per_head * W;
    X* at = x.row(n) + pack / packs_per_head * HS + i;
    const float* angle = table + n % T * HS + i;
    Floats<W> a = load<W>(at), b = load<W>(at + half);
    const Floats<W> c = load<W>(angle), s = load<W>(angle + half);
    for (int j = 0; j < W; j++) {
      const float first = a[j];
      a[j] = first * c[j] - b[j] * (s[j] * sign);
      b[j] = b[j] * c[j] + first * (s[j] * sign);
    }
    store(at, a);
    store(at + half, b);
  });
}

template <class X, int HP>
struct ForwardSizes : TileSizes<X, HP, 64, HP <= 64 ? 64 : 32> {
  using S = TileSizes<X, HP, 64, HP <= 64 ? 64 : 32>;
  static constexpr size_t bytes = S::bytes_of_rows(S::Rows + 2 * S::Cols) + S::bytes_of_scores;
};

// One block for 64 queries of one head of one sequence; the longest rows start first. There may be
// more keys (S) than queries: query t is position `past` + t, past = S - T.
template <class X, int HP>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_forward_kernel(View<X> out, float* lse, View<const X> q, View<const X> k,
                             View<const X> v, AttentionArgs a, int S) {
  using Z = ForwardSizes<X, HP>;
  DYN_SMEM(X, queries);
  X* keys = queries + Z::Rows * Z::Stride;
  X* values = keys + Z::Cols * Z::Stride;
  float* scores = reinterpret_cast<float*>(values + Z::Cols * Z::Stride);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, h = int(blockIdx.y);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * Z::Rows;
  const int64_t row = int64_t(blockIdx.z) * a.T, kv_row = int64_t(blockIdx.z) * S;
  const int past = S - a.T;
  const int64_t q_column = int64_t(h) * a.HS, kv_column = int64_t(h / a.group) * a.HS;
  const Head<const X> kh(k, kv_row, kv_column, S, a.HS, a.wide),
      vh(v, kv_row, kv_column, S, a.HS, a.wide);

  float acc[Z::R][Z::O] = {}, top[Z::R], total[Z::R];
  for (int i = 0; i < Z::R; i++) top[i] = -INFINITY, total[i] = 0;
  load_tile<Z>(queries, Head<const X>(q, row, q_column, a.T, a.HS, a.wide), q0, Z::Rows);
  const int end = min(S, past + q0 + Z::Rows);
  for (int k0 = 0; k0 < end; k0 += Z::Cols) {
    __syncthreads();  // the previous tiles have been read
    load_tile<Z>(keys, kh, k0, Z::Cols);
    async_commit();
    load_tile<Z>(values, vh, k0, Z::Cols);
    async_commit();
    async_wait<1>();
    __syncthreads();  // queries and keys are there; values are on their way
    float s[Z::R][Z::C];
    dot_rows<Z>(s, queries, keys);
    for (int i = 0; i < Z::R; i++) {
      float peak = -INFINITY, sum = 0;
      for (int j = 0; j < Z::C; j++) {
        const bool seen = k0 + tx + 16 * j <= past + q0 + ty * Z::R + i;
        s[i][j] = seen ? s[i][j] * a.scale_log2 : -INFINITY;
        peak = fmaxf(peak, s[i][j]);
      }
      peak = fmaxf(top[i], warp_reduce<16>(peak, Max()));
      for (int j = 0; j < Z::C; j++) sum += s[i][j] = exp2f(s[i][j] - peak);
      const float keep = exp2f(top[i] - peak);
      total[i] = total[i] * keep + warp_reduce<16>(sum, Sum());
      for (int o = 0; o < Z::O; o++) acc[i][o] *= keep;
      top[i] = peak;
    }
    share_scores<Z>(scores, s);
    async_wait<0>();
    __syncthreads();
    add_product<Z>(acc, scores, values);
  }

  const int64_t of_head = (int64_t(blockIdx.z) * a.NH + h) * a.T;
  float factor[Z::R];
  for (int i = 0; i < Z::R; i++) {
    const int t = q0 + ty * Z::R + i;
    factor[i] = 1.0f / total[i];
    if (lse && tx == 0 && t < a.T) lse[of_head + t] = top[i] * kLn2 + logf(total[i]);
  }
  store_rows<Z>(Head<X>(out, row, q_column, a.T, a.HS, a.wide), q0, acc, factor);
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_rope(const Tensor& x, const Tensor& table, int64_t T, int64_t HS, bool inverse) {
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    // As columns of their own, so that half a head has to be a multiple of the pack as well.
    const auto half = [HS](const Tensor& t) { return t.col_slice(0, HS / 2); };
    const Tensor second = x.col_slice(HS / 2, HS / 2), sines = table.col_slice(HS / 2, HS / 2);
    with_width<kWide<X>>({half(x), second, half(table), sines}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(x.rows, x.cols / 2 / W);
      if (g.empty()) return;
      launch(rope_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(x),
             pointer<const float>(table), T, int(HS), inverse ? -1.0f : 1.0f, g.rows, g.packs);
    });
  });
}

void CudaOps::attend(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                     const Tensor& v, const AttentionShape& s, int64_t S) {
  if (q.numel() == 0) return;
  dispatch(q, [&](auto type) {
    using X = decltype(type);
    const bool wide = s.HS % kWide<X> == 0 && in_packs_of(kWide<X>, {out, q, k, v});
    with_head_size(s.HS, [&](auto head_size) {
      using Z = ForwardSizes<X, head_size>;
      const auto kernel = attention_forward_kernel<X, head_size>;
      allow_shared(kernel, Z::bytes);
      launch(kernel, dim3(unsigned(ceil_div(s.T, Z::Rows)), unsigned(s.NH), unsigned(s.B)),
             kAttentionThreads, Z::bytes, stream(), view<X>(out), pointer<float>(lse),
             view<const X>(q), view<const X>(k), view<const X>(v),
             attention_args(s.T, s.HS, s.NH, s.NKV, wide), int(S));
    });
  });
}

void CudaOps::do_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q,
                                   const Tensor& k, const Tensor& v, const AttentionShape& s) {
  attend(out, lse, q, k, v, s, s.T);
}

void CudaOps::do_attention_cached(const Tensor& out, const Tensor& q, const Tensor& k,
                                  const Tensor& v, int64_t HS) {
  LOQAL_ASSERT(k.rows < (1 << 30), "S=", k.rows);
  attend(out, {}, q, k, v, {1, q.rows, q.cols / HS, k.cols / HS, HS}, k.rows);
}

}  // namespace loqal
