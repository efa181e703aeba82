// Matrix products as a fixed grid of one-thread output panels. The inner dimension is never split
// between threads and the grid depends on the shape alone, so any thread count gives the same
// bytes.
#include <algorithm>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

namespace loqal {

namespace {

// Panels of at most 256 x 256: large enough that packing them is cheap, small enough that what is
// packed stays in L2 and a fp32 panel is still there for the epilogue. Small products are cut
// finer, into at least kTasks panels, so that a few threads end at about the same time. A task is
// up to kTogether panels side by side: they share the rows of A, which are packed once.
constexpr int64_t kPanel = 256, kSmallest = 96, kTasks = 8, kTogether = 4;

struct Grid {
  int64_t rows, cols;  // of a panel
  int64_t down, across;
  int64_t together;  // panels of a task

  int64_t tasks_across() const { return (across + together - 1) / together; }
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// n cut evenly into `parts`, rounded up to whole tiles of the kernel.
int64_t even_cut(int64_t n, int64_t parts, int64_t multiple) {
  return ceil_div(ceil_div(n, parts), multiple) * multiple;
}

Grid grid_of(int64_t M, int64_t N) {
  int64_t down = ceil_div(M, kPanel), across = ceil_div(N, kPanel);
  while (down * across < kTasks) {
    if (M / down >= N / across && M / down >= 2 * kSmallest) down *= 2;
    else if (N / across >= 2 * kSmallest) across *= 2;
    else break;
  }
  const int64_t rows = even_cut(M, down, 6), cols = even_cut(N, across, 16);
  Grid grid = {rows, cols, ceil_div(M, rows), ceil_div(N, cols), kTogether};
  while (grid.together > 1 && grid.down * grid.tasks_across() < kTasks) grid.together--;
  return grid;
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
  const Grid grid = grid_of(M, N);
  const bool direct = c.dtype == DType::F32 && !args.bias && !args.residual;
  const auto multiply = [&](int64_t i, int64_t j, bool same_a) {
    const Tensor panel =
        c.row_slice(i, std::min(grid.rows, M - i)).col_slice(j, std::min(grid.cols, N - j));
    const cpu::GemmOperand pa = panel_of(a, args.transpose_a, !args.transpose_a, i);
    const cpu::GemmOperand pb = panel_of(b, args.transpose_b, args.transpose_b, j);
    if (direct) {
      cpu::gemm(panel.rows, panel.cols, K, pa, pb, panel.as<float>(), panel.ld, args.accumulate,
                same_a);
      return;
    }
    thread_local std::vector<float> sums;
    sums.resize(size_t(kPanel + 16) * (kPanel + 16));
    cpu::gemm(panel.rows, panel.cols, K, pa, pb, sums.data(), panel.cols, false, same_a);
    const Tensor residual =
        args.residual ? args.residual.row_slice(i, panel.rows).col_slice(j, panel.cols) : Tensor{};
    const float* bias = args.bias ? args.bias.as<float>() + j : nullptr;
    dispatch(panel, [&](auto type) {
      write_panel<decltype(type)>(panel, sums.data(), panel.cols, bias, residual, args.accumulate);
    });
  };
  pool_.run(grid.down * grid.tasks_across(), [&](int64_t task) {
    const int64_t row = task / grid.tasks_across();
    const int64_t first = task % grid.tasks_across() * grid.together;
    for (int64_t p = first; p < std::min(first + grid.together, grid.across); p++)
      multiply(row * grid.rows, p * grid.cols, p > first);
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
