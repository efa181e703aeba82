// gemm(): oneDNN where it is the faster one, else the built-in kernel: both operands are packed,
// block by block, into strips that the microkernel reads front to back (Goto & van de Geijn 2008).
// Packing also widens BF16 and makes all strides and orientations alike.
#include "ops/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "ops/cpu/microkernel.h"
#include "ops/cpu/transpose.h"

namespace loqal::cpu {

namespace {

constexpr int64_t kDepth = 256;  // of one packed block: a strip of B stays in L1, all of A in L2
constexpr int64_t kTall = 6, kWide = 2 * simd::kWidth;  // a tile of C: what the registers hold

constexpr int64_t kKeptDepth = 6 * kDepth;  // of an A that is packed once for several products

constexpr int64_t kLineNumbers = 16;
struct alignas(64) Line {  // of the cache
  float x[kLineNumbers];
};
using Strips = std::vector<Line>;

using simd::kSide;
using simd::load_row;
using simd::Row;

/// strips[s][k][w] = op(X)[s * width + w, k], w < width; anything where the outer index is >=
/// outer, which only meets results that nobody reads. One outer index is a stored row of `depth`
/// numbers.
template <int64_t width, class X>
void pack_rows(int64_t outer, int64_t depth, const X* x, int64_t ld, float* strips) {
  static_assert(width <= kSide || width % kSide == 0);
  constexpr int64_t step =
      std::min<int64_t>(width, kSide);  // rows of one transposed block that count
  for (int64_t o = 0; o < outer; o += step) {
    const int64_t rows = std::min(step, outer - o);
    float* to = strips + o / width * width * depth + o % width;
    int64_t k = 0;
    for (; k + kSide <= depth; k += kSide) {
      if (k % kLineNumbers == 0)  // short pieces of many rows: the hardware does not foresee them
        for (int64_t r = 0; r < step; r++) __builtin_prefetch(x + (o + step + r) * ld + k);
      Row block[kSide];
#pragma GCC unroll 8
      for (int64_t r = 0; r < kSide; r++)
        block[r] = r < rows ? load_row(x + (o + r) * ld + k) : Row{};
      simd::transpose(block);
      // In order: what a narrow strip's row writes beyond its end, the next one overwrites.
#pragma GCC unroll 8
      for (int64_t r = 0; r < kSide; r++) simd::store_row(to + (k + r) * width, block[r]);
    }
    for (; k < depth; k++)
      for (int64_t r = 0; r < step; r++)
        to[k * width + r] = r < rows ? to_float(x[(o + r) * ld + k]) : 0.0f;
  }
}

/// The same strips of an operand whose rows run along the inner dimension: row k holds all outer
/// indices. A few rows at a time: more would touch more pages than the TLB holds.
template <int64_t width, class X>
void pack_columns(int64_t outer, int64_t depth, const X* x, int64_t ld, float* strips) {
  constexpr int64_t group = 16, vectors = (width + kSide - 1) / kSide;
  for (int64_t k0 = 0; k0 < depth; k0 += group) {
    const int64_t k1 = std::min(k0 + group, depth);
    for (int64_t o = 0; o < outer; o += width) {
      float* to = strips + o * depth;
      for (int64_t r = k1; r < k1 + group; r++) __builtin_prefetch(x + r * ld + o);
      int64_t k = k0;
      // A narrow strip's last row has no next one that overwrites what whole vectors write too
      // much.
      const int64_t vector_end = o + vectors * kSide > outer    ? k0
                                 : width % kSide && k1 == depth ? k1 - 1
                                                                : k1;
      for (; k < vector_end; k++)
        for (int64_t v = 0; v < vectors; v++)
          simd::store_row(to + k * width + v * kSide, load_row(x + k * ld + o + v * kSide));
      for (; k < k1; k++)
        for (int64_t w = 0; w < width; w++)
          to[k * width + w] = o + w < outer ? to_float(x[k * ld + o + w]) : 0.0f;
    }
  }
}

/// Rows [k0, k0 + depth) of the inner dimension of an operand. inner_is_row: they are stored rows.
template <int64_t width>
void pack(const GemmOperand& x, bool inner_is_row, int64_t outer, int64_t k0, int64_t depth,
          Strips& strips) {
  const int64_t numbers = (outer + width - 1) / width * width * depth + kSide;
  const size_t lines = size_t(numbers / kLineNumbers + 1);
  if (strips.size() < lines) strips.resize(lines);
  float* to = strips.data()->x;
  const auto typed = [&](const auto* data) {
    if (inner_is_row) pack_columns<width>(outer, depth, data + k0 * x.ld, x.ld, to);
    else pack_rows<width>(outer, depth, data + k0, x.ld, to);
  };
  if (x.dtype == DType::BF16) typed(static_cast<const bf16*>(x.data));
  else typed(static_cast<const float*>(x.data));
}

/// C[6, 2 vectors] of which only rows x cols exist.
void ragged_tile(int64_t rows, int64_t cols, int64_t k, const float* a, const float* b, float* c,
                 int64_t ldc, bool accumulate) {
  float whole[kTall * kWide];
  detail::tile<kTall, 2>(k, a, 1, kTall, b, kWide, whole, kWide, false);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      float& out = c[i * ldc + j];
      out = accumulate ? out + whole[i * kWide + j] : whole[i * kWide + j];
    }
}

/// One row of A times rows of B, as in sampling: each number of B is used once, so that to pack it
/// would cost more than the product.
template <class X>
void one_row(int64_t n, int64_t k, const X* a, const X* b, int64_t ldb, float* c, bool accumulate) {
  for (int64_t j = 0; j < n; j++, b += ldb) {
    const float sum = simd::map_sum(
        k, [](simd::vf x, simd::vf y) { return x * y; }, a, b);
    c[j] = accumulate ? c[j] + sum : sum;
  }
}

void builtin_gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                  float* c, int64_t ldc, bool accumulate, bool same_a) {
  if (m == 1 && !a.transpose && b.transpose) {
    const auto typed = [&](const auto* x) {
      one_row(n, k, x, static_cast<decltype(x)>(b.data), b.ld, c, accumulate);
    };
    if (a.dtype == DType::BF16) typed(static_cast<const bf16*>(a.data));
    else typed(static_cast<const float*>(a.data));
    return;
  }
  thread_local std::vector<Strips> a_blocks;  // all of A, if it will be used again
  thread_local Strips b_strips;
  const bool keep = k <= kKeptDepth;
  if (!same_a && a_blocks.empty()) a_blocks.resize(size_t(kKeptDepth / kDepth));
  for (int64_t k0 = 0; k0 < k; k0 += kDepth, accumulate = true) {
    const int64_t depth = std::min(kDepth, k - k0);
    Strips& a_strips = a_blocks[keep ? size_t(k0 / kDepth) : 0];
    if (!same_a || !keep) pack<kTall>(a, a.transpose, m, k0, depth, a_strips);
    pack<kWide>(b, !b.transpose, n, k0, depth, b_strips);
    for (int64_t j = 0; j < n; j += kWide)
      for (int64_t i = 0; i < m; i += kTall) {
        const float *as = a_strips.data()->x + i * depth, *bs = b_strips.data()->x + j * depth;
        float* tile = c + i * ldc + j;
        if (i + kTall <= m && j + kWide <= n)
          detail::tile<kTall, 2>(depth, as, 1, kTall, bs, kWide, tile, ldc, accumulate);
        else
          ragged_tile(std::min(kTall, m - i), std::min(kWide, n - j), depth, as, bs, tile, ldc,
                      accumulate);
      }
  }
  if (k == 0 && !accumulate)
    for (int64_t i = 0; i < m; i++) std::fill_n(c + i * ldc, n, 0.0f);
}

}  // namespace

#if !LOQAL_DNNL
bool dnnl_multiplies(DType) { return false; }
std::string gemm_library() { return "built-in GEMM"; }
#endif

void gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b, float* c,
          int64_t ldc, bool accumulate, bool same_a) {
#if LOQAL_DNNL
  // To oneDNN a sum of nothing is nothing to do: C would stay as it was.
  if (k > 0 && dnnl_multiplies(a.dtype)) return dnnl_gemm(m, n, k, a, b, c, ldc, accumulate);
#endif
  builtin_gemm(m, n, k, a, b, c, ldc, accumulate, same_a);
}

}  // namespace loqal::cpu
