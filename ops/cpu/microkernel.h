// The register-blocked kernel behind attention and the built-in GEMM: C[m,n] (+)= A[m,k] B[k,n] for
// small blocks that live in cache, on one thread, operands read in place (no packing).
// 6 x 2 vectors of accumulators fill the 16 registers of AVX2.
#pragma once
#include "ops/cpu/simd.h"

namespace loqal::cpu {

namespace detail {

/// C[MR, V vectors] at c; A(i,k) = a[i*ai + k*ak]; B(k,j) = b[k*ldb + j].
template <int MR, int V>
inline void tile(int64_t k, const float* a, int64_t ai, int64_t ak, const float* b, int64_t ldb,
                 float* c, int64_t ldc, bool accumulate) {
  using namespace simd;
  vf acc[MR][V];
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < V; j++) acc[i][j] = vf{};
  for (int64_t p = 0; p < k; p++, a += ak, b += ldb) {
    vf row[V];
    for (int j = 0; j < V; j++) row[j] = load(b + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
      const vf x = splat(a[i * ai]);
#pragma GCC unroll 2
      for (int j = 0; j < V; j++) acc[i][j] += x * row[j];
    }
  }
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < V; j++) {
      float* out = c + i * ldc + j * kWidth;
      store(out, accumulate ? load(out) + acc[i][j] : acc[i][j]);
    }
}

/// The ragged right edge, fewer than a vector of columns.
inline void edge(int64_t m, int64_t n, int64_t k, const float* a, int64_t ai, int64_t ak,
                 const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float sum = 0;
      for (int64_t p = 0; p < k; p++) sum += a[i * ai + p * ak] * b[p * ldb + j];
      c[i * ldc + j] = accumulate ? c[i * ldc + j] + sum : sum;
    }
}

template <int V>
inline void strip(int64_t m, int64_t k, const float* a, int64_t ai, int64_t ak, const float* b,
                  int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  int64_t i = 0;
  for (; i + 6 <= m; i += 6)
    tile<6, V>(k, a + i * ai, ai, ak, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 2 <= m; i += 2)
    tile<2, V>(k, a + i * ai, ai, ak, b, ldb, c + i * ldc, ldc, accumulate);
  if (i < m) tile<1, V>(k, a + i * ai, ai, ak, b, ldb, c + i * ldc, ldc, accumulate);
}

}  // namespace detail

inline void small_gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t ai, int64_t ak,
                       const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  constexpr int64_t w = simd::kWidth;
  int64_t j = 0;
  for (; j + 2 * w <= n; j += 2 * w)
    detail::strip<2>(m, k, a, ai, ak, b + j, ldb, c + j, ldc, accumulate);
  for (; j + w <= n; j += w) detail::strip<1>(m, k, a, ai, ak, b + j, ldb, c + j, ldc, accumulate);
  if (j < n) detail::edge(m, n - j, k, a, ai, ak, b + j, ldb, c + j, ldc, accumulate);
}

}  // namespace loqal::cpu
