// gemm(): native where the back end can, else BF16 blocks widened to F32; and the built-in back end.
#include "ops/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "ops/cpu/microkernel.h"

namespace loqal::cpu {

namespace {

constexpr int64_t kBlock = 256;  // depth of one pass; bounds the scratch, independent of threads

// Copies rows x cols of the stored (not transposed) matrix into contiguous F32.
void widen(int64_t rows, int64_t cols, const bf16* from, int64_t ld, float* to) {
  for (int64_t r = 0; r < rows; r++)
    simd::map(cols, [](simd::vf v) { return v; }, to + r * cols, from + r * ld);
}

// Rows [k0, k0+kk) of op(X)'s inner dimension, widened; `outer` is the other dimension's length.
GemmOperand widened_block(const GemmOperand& x, bool inner_is_row, int64_t outer, int64_t k0, int64_t kk,
                          std::vector<float>& scratch) {
  const auto* data = static_cast<const bf16*>(x.data);
  const int64_t rows = inner_is_row ? kk : outer, cols = inner_is_row ? outer : kk;
  scratch.resize(size_t(std::max<int64_t>(int64_t(scratch.size()), rows * cols)));
  widen(rows, cols, data + (inner_is_row ? k0 * x.ld : k0), x.ld, scratch.data());
  return {scratch.data(), DType::F32, cols, x.transpose};
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b, float* c,
          int64_t ldc, bool accumulate) {
  if (native_gemm(m, n, k, a, b, c, ldc, accumulate)) return;
  thread_local std::vector<float> a_block, b_block;
  constexpr int64_t depth = 4 * kBlock;
  for (int64_t k0 = 0; k0 < k; k0 += depth) {
    const int64_t kk = std::min(depth, k - k0);
    const GemmOperand aw = widened_block(a, a.transpose, m, k0, kk, a_block);
    const GemmOperand bw = widened_block(b, !b.transpose, n, k0, kk, b_block);
    native_gemm(m, n, kk, aw, bw, c, ldc, accumulate || k0 > 0);
  }
}

#if !LOQAL_DNNL
bool has_native_bf16() { return false; }
std::string gemm_library() { return "built-in GEMM (oneDNN absent: slower)"; }

// B is packed block by block into rows of one cache-resident panel, A is read in place.
bool native_gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b, float* c,
                 int64_t ldc, bool accumulate) {
  if (a.dtype != DType::F32) return false;
  const auto* pa = static_cast<const float*>(a.data);
  const auto* pb = static_cast<const float*>(b.data);
  constexpr int64_t columns = 2 * simd::kWidth;
  thread_local std::vector<float> panel;
  panel.resize(size_t(kBlock * columns));
  for (int64_t k0 = 0; k0 < k; k0 += kBlock) {
    const int64_t kk = std::min(kBlock, k - k0);
    for (int64_t j = 0; j < n; j += columns) {
      const int64_t width = std::min(columns, n - j);
      for (int64_t p = 0; p < kk; p++)
        for (int64_t x = 0; x < width; x++)
          panel[size_t(p * columns + x)] =
              b.transpose ? pb[(j + x) * b.ld + k0 + p] : pb[(k0 + p) * b.ld + j + x];
      const int64_t ai = a.transpose ? 1 : a.ld, ak = a.transpose ? a.ld : 1;
      small_gemm(m, width, kk, pa + k0 * ak, ai, ak, panel.data(), columns, c + j, ldc,
                 accumulate || k0 > 0);
    }
  }
  if (k == 0 && !accumulate)
    for (int64_t i = 0; i < m; i++) std::fill_n(c + i * ldc, n, 0.0f);
  return true;
}
#endif

}  // namespace loqal::cpu
