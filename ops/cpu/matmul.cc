// Matrix products as a fixed grid of one-thread output panels. The inner dimension is never split
// between threads and the grid depends on the shape alone, so any thread count gives the same
// bytes.
#include <algorithm>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

namespace loqal {

namespace {

// Panels of about 256 x 256: large enough for a library call to run near its peak, small enough
// that a fp32 panel stays in L2 for the epilogue and that 16 cores find work.
constexpr int64_t kPanel = 256;

int64_t even_cut(int64_t n, int64_t multiple) {
  const int64_t parts = (n + kPanel - 1) / kPanel;
  const int64_t cut = (n + parts - 1) / parts;
  return (cut + multiple - 1) / multiple * multiple;
}

cpu::GemmOperand panel_of(const Tensor& t, bool transpose, bool outer_is_row, int64_t first) {
  const int64_t skip = outer_is_row ? first * t.ld : first;
  return {static_cast<const char*>(t.data) + skip * int64_t(size_of(t.dtype)), t.dtype, t.ld,
          transpose};
}

// c (+)= sum + bias + residual over one panel, in fp32, rounded once.
template <class C>
void write_panel(const Tensor& c, const float* sums, int64_t ld, const float* bias,
                 const Tensor& residual, bool accumulate) {
  for (int64_t r = 0; r < c.rows; r++) {
    C* out = c.row<C>(r);
    const float* sum = sums + r * ld;
    const C* add = residual ? residual.row<C>(r) : nullptr;
    const auto value = [&](auto get) {
      auto v = get(sum);
      if (bias) v += get(bias);
      if (add) v += get(add);
      if (accumulate) v += get(static_cast<const C*>(out));
      return v;
    };
    simd::sweep(
        c.cols,
        [&](int64_t i) { simd::store(out + i, value([&](auto* p) { return simd::load(p + i); })); },
        [&](int64_t i, int n) {
          simd::store_part(out + i, value([&](auto* p) { return simd::load_part(p + i, n); }), n);
        });
  }
}

}  // namespace

void CpuOps::do_matmul(const Tensor& c, const Tensor& a, const Tensor& b, const MatmulArgs& args) {
  const int64_t M = c.rows, N = c.cols, K = args.transpose_a ? a.rows : a.cols;
  if (M == 0 || N == 0) return;
  const int64_t rows = even_cut(M, 6), cols = even_cut(N, 16);
  const int64_t across = (N + cols - 1) / cols, down = (M + rows - 1) / rows;
  const bool direct = c.dtype == DType::F32 && !args.bias && !args.residual;
  pool_.run(down * across, [&](int64_t task) {
    const int64_t i = task / across * rows, j = task % across * cols;
    const Tensor panel = c.row_slice(i, std::min(rows, M - i)).col_slice(j, std::min(cols, N - j));
    const cpu::GemmOperand pa = panel_of(a, args.transpose_a, !args.transpose_a, i);
    const cpu::GemmOperand pb = panel_of(b, args.transpose_b, args.transpose_b, j);
    if (direct) {
      cpu::gemm(panel.rows, panel.cols, K, pa, pb, panel.as<float>(), panel.ld, args.accumulate);
      return;
    }
    thread_local std::vector<float> sums;
    sums.resize(size_t(kPanel + 16) * (kPanel + 16));
    cpu::gemm(panel.rows, panel.cols, K, pa, pb, sums.data(), panel.cols, false);
    const Tensor residual =
        args.residual ? args.residual.row_slice(i, panel.rows).col_slice(j, panel.cols) : Tensor{};
    const float* bias = args.bias ? args.bias.as<float>() + j : nullptr;
    dispatch(panel, [&](auto type) {
      write_panel<decltype(type)>(panel, sums.data(), panel.cols, bias, residual, args.accumulate);
    });
  });
}

void CpuOps::do_bias_backward(const Tensor& db, const Tensor& dy, bool accumulate) {
  dispatch(dy, [&](auto type) {
    using X = decltype(type);
    column_sums(dy.rows, dy.cols, {db}, accumulate, [&](int64_t first, int64_t last, float* sum) {
      for (int64_t r = first; r < last; r++)
        simd::map(
            dy.cols, [](simd::vf s, simd::vf g) { return s + g; }, sum, sum, dy.row<X>(r));
    });
  });
}

}  // namespace loqal
