// The pieces that attention's kernels are made of (attention.cu, attention_backward.cu): tiles of
// rows of a head in shared memory, and two small matrix products on them by 256 threads.
//
// The threads form a 16 x 16 grid: thread (ty, tx) computes rows ty*R ... ty*R + R-1 of a tile of
// scores, and of the output that these rows make, so whatever a row needs stays within 16
// neighbouring lanes of a warp: row sums are shuffles, scores pass through shared memory behind a
// __syncwarp. Columns of scores are tx + 16 j, which keeps the 16 lanes in different banks.
// This is the place of mma.sync and ldmatrix: they would replace dot_rows and add_product.
#pragma once
#include "ops/cuda/device.cuh"

namespace loqal::cuda {

constexpr int kAttentionThreads = 256;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Sizes of one kernel's tiles. HP: head size, rounded up to what there are kernels for. A tile's
/// row has 16 bytes more than HP elements, so that lanes that read different rows use different
/// banks.
template <class X, int HP, int Rows_, int Cols_>
struct TileSizes {
  static constexpr int Rows = Rows_, Cols = Cols_;
  static constexpr int R = Rows / 16, C = Cols / 16;  // scores of one thread
  static constexpr int O = HP / 16;                   // outputs of one thread and row
  static constexpr int Stride = HP + kWide<X>;        // of a row of X
  static constexpr int ScoreStride = Cols + 4;        // of a row of scores, floats
  static constexpr size_t bytes_of_rows(int rows) { return size_t(rows) * Stride * sizeof(X); }
  static constexpr size_t bytes_of_scores = size_t(Rows) * ScoreStride * sizeof(float);
};

/// One head of one sequence in a matrix of tokens: T rows from `first`, HS columns.
template <class X>
struct Head {
  X* data;
  int64_t ld;
  int T, HS;
  bool wide;  ///< rows allow 128-bit accesses

  __device__ Head(const View<X>& m, int64_t row, int64_t column, int T_, int HS_, bool wide_)
      : data(m.row(row) + column), ld(m.ld), T(T_), HS(HS_), wide(wide_) {}
  __device__ X* row(int t) const { return data + t * ld; }
};

/// tile[r][d] = head[first + r][d]; zero beyond the sequence and beyond the head's size. It is
/// there after async_commit, async_wait and a barrier.
template <class S, class X>
__device__ void load_tile(X* tile, const Head<const X>& head, int first, int rows) {
  constexpr int W = kWide<X>, packs = (S::Stride - W) / W;
  for (int i = int(threadIdx.x); i < rows * packs; i += kAttentionThreads) {
    const int r = i / packs, d = i % packs * W;
    X* to = tile + r * S::Stride + d;
    const bool inside = first + r < head.T;
    if (head.wide) {
      const bool read = inside && d < head.HS;
      async_copy(to, read ? head.row(first + r) + d : head.data, read ? 16 : 0);
    } else {
      for (int j = 0; j < W; j++)
        to[j] = inside && d + j < head.HS ? head.row(first + r)[d + j] : from_float<X>(0.0f);
    }
  }
}

/// s[i][j] = dot product of row ty*R + i of a and row tx + 16 j of b.
template <class S, class X>
__device__ void dot_rows(float (&s)[S::R][S::C], const X* a, const X* b) {
  constexpr int W = kWide<X>, HP = S::Stride - W;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int i = 0; i < S::R; i++)
    for (int j = 0; j < S::C; j++) s[i][j] = 0;
  for (int d = 0; d < HP; d += W) {
    Floats<W> row[S::R];
    for (int i = 0; i < S::R; i++) row[i] = load<W>(a + (ty * S::R + i) * S::Stride + d);
    for (int j = 0; j < S::C; j++) {
      const Floats<W> column = load<W>(b + (tx + 16 * j) * S::Stride + d);
      for (int i = 0; i < S::R; i++)
        for (int k = 0; k < W; k++) s[i][j] += row[i][k] * column[k];
    }
  }
}

/// A thread's O columns come in groups of up to 4 neighbours, 16 threads side by side.
template <class S>
constexpr int kGroup = S::O < 4 ? S::O : 4;
template <class S>
__device__ int column_of(int group) {
  return (group * 16 + int(threadIdx.x % 16)) * kGroup<S>;
}

/// out[i][:] += sum over c of scores[ty*R + i][c] * b[c][the thread's columns].
template <class S, class X>
__device__ void add_product(float (&out)[S::R][S::O], const float* scores, const X* b) {
  constexpr int G = kGroup<S>;
  const float* mine = scores + threadIdx.x / 16 * S::R * S::ScoreStride;
  for (int c = 0; c < S::Cols; c += 4) {
    Floats<4> p[S::R];
    for (int i = 0; i < S::R; i++) p[i] = load<4>(mine + i * S::ScoreStride + c);
    for (int k = 0; k < 4; k++)
      for (int g = 0; g < S::O / G; g++) {
        const Floats<G> row = load<G>(b + (c + k) * S::Stride + column_of<S>(g));
        for (int i = 0; i < S::R; i++)
          for (int e = 0; e < G; e++) out[i][g * G + e] += p[i][k] * row[e];
      }
  }
}

/// scores[ty*R + i][tx + 16 j] = s[i][j], for the same 16 lanes to read. They are done with what
/// was there before, and it is there when this returns.
template <class S>
__device__ void share_scores(float* scores, const float (&s)[S::R][S::C]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  __syncwarp();
  for (int i = 0; i < S::R; i++)
    for (int j = 0; j < S::C; j++) scores[(ty * S::R + i) * S::ScoreStride + tx + 16 * j] = s[i][j];
  __syncwarp();
}

/// head[first + ty*R + i][the thread's columns] = factor[i] * out[i][:], as far as there are rows
/// and columns.
template <class S, class X>
__device__ void store_rows(const Head<X>& head, int first, const float (&out)[S::R][S::O],
                           const float (&factor)[S::R]) {
  constexpr int G = kGroup<S>;
  for (int i = 0; i < S::R; i++) {
    const int t = first + int(threadIdx.x / 16) * S::R + i;
    if (t >= head.T) continue;
    for (int g = 0; g < S::O / G; g++) {
      const int d = column_of<S>(g);
      Floats<G> v;
      for (int e = 0; e < G; e++) v[e] = out[i][g * G + e] * factor[i];
      if (head.wide && d < head.HS) store(head.row(t) + d, v);
      for (int e = 0; e < G && !head.wide; e++)
        if (d + e < head.HS) head.row(t)[d + e] = from_float<X>(v[e]);
    }
  }
}

/// Shape of a call, as the kernels see it.
struct AttentionArgs {
  int T, HS, NH, group;  ///< group: query heads of one key/value head
  float scale_log2;      ///< log2(e) / sqrt(HS): scores in units in which 2^x is the exponential
  bool wide;
};

/// Calls f with HP = 32, 64 or 128 as a compile-time number.
template <class F>
void with_head_size(int64_t HS, const F& f) {
  if (HS <= 32) f(std::integral_constant<int, 32>{});
  else if (HS <= 64) f(std::integral_constant<int, 64>{});
  else if (HS <= 128) f(std::integral_constant<int, 128>{});
  else fail(cat("attention on CUDA has head sizes up to 128, not ", HS), "use more, smaller heads");
}

inline AttentionArgs attention_args(int64_t T, int64_t HS, int64_t NH, int64_t NKV, bool wide) {
  LOQAL_ASSERT(T < (1 << 30), "T=", T);
  return {int(T), int(HS), int(NH), int(NH / NKV), kLog2e / std::sqrt(float(HS)), wide};
}

}  // namespace loqal::cuda
