// gemm(): native where the back end can, else BF16 blocks widened to F32; and the built-in back
// end.
#include "ops/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "ops/cpu/microkernel.h"

namespace loqal::cpu {

namespace {

constexpr int64_t kBlock = 256;  // depth of one pass of the built-in kernel

// Copies rows x cols of a stored (not transposed) matrix into F32.
template <class X>
void copy_block(int64_t rows, int64_t cols, const X* from, int64_t ld, float* to, int64_t to_ld) {
  for (int64_t r = 0; r < rows; r++)
    simd::map(
        cols, [](simd::vf v) { return v; }, to + r * to_ld, from + r * ld);
}

// Whether the back end gets a copy instead of the operand itself: BF16 it cannot multiply; or a
// matrix whose rows run along the inner dimension at a stride that is a multiple of 1 KiB, when the
// back end walks operands in place: all rows then fall into the same few sets of the cache, which
// halves its speed (measured on Zen 3: 44 instead of 97 GFLOP/s).
bool must_copy(const GemmOperand& x, bool inner_is_row) {
  if (x.dtype == DType::BF16) return !has_native_bf16();
  return inner_is_row && x.ld % 256 == 0 && !packs_operands();
}

// Rows [k0, k0+kk) of op(X)'s inner dimension; `outer` is the other dimension's length.
GemmOperand block_of(const GemmOperand& x, bool inner_is_row, bool copy, int64_t outer, int64_t k0,
                     int64_t kk, std::vector<float>& scratch) {
  const char* data = static_cast<const char*>(x.data) +
                     (inner_is_row ? k0 * x.ld : k0) * int64_t(size_of(x.dtype));
  if (!copy) return {data, x.dtype, x.ld, x.transpose};
  const int64_t rows = inner_is_row ? kk : outer, cols = inner_is_row ? outer : kk;
  const int64_t ld = cols % 256 ? cols : cols + 16;
  if (int64_t(scratch.size()) < rows * ld) scratch.resize(size_t(rows * ld));
  if (x.dtype == DType::BF16)
    copy_block(rows, cols, reinterpret_cast<const bf16*>(data), x.ld, scratch.data(), ld);
  else copy_block(rows, cols, reinterpret_cast<const float*>(data), x.ld, scratch.data(), ld);
  return {scratch.data(), DType::F32, ld, x.transpose};
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b, float* c,
          int64_t ldc, bool accumulate) {
  const bool copy_a = must_copy(a, a.transpose), copy_b = must_copy(b, !b.transpose);
  if (!copy_a && !copy_b) return native_gemm(m, n, k, a, b, c, ldc, accumulate);
  thread_local std::vector<float> a_block, b_block;
  constexpr int64_t depth = 1024;  // bounds the copies
  for (int64_t k0 = 0; k0 < k; k0 += depth) {
    const int64_t kk = std::min(depth, k - k0);
    native_gemm(m, n, kk, block_of(a, a.transpose, copy_a, m, k0, kk, a_block),
                block_of(b, !b.transpose, copy_b, n, k0, kk, b_block), c, ldc,
                accumulate || k0 > 0);
  }
}

#if !LOQAL_DNNL
bool has_native_bf16() { return false; }
bool packs_operands() { return false; }
std::string gemm_library() { return "built-in GEMM (oneDNN absent: slower)"; }

// B is packed block by block into rows of one cache-resident panel, A is read in place.
void native_gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                 float* c, int64_t ldc, bool accumulate) {
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
}
#endif

}  // namespace loqal::cpu
