// Token and position embedding. The backward pass is a scatter: each task owns a slice of channels
// and visits all tokens in order, so that no two tasks meet and the sum's order is fixed.
#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;

void CpuOps::do_embedding_forward(const Tensor& x, const Tensor& tokens, const Tensor& wte,
                                  const Tensor& wpe, int64_t T) {
  const int32_t* ids = tokens.as<int32_t>();
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    for_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; n++) {
        const X* row = wte.row<X>(ids[n]);
        if (wpe)
          simd::map(
              x.cols, [](vf a, vf b) { return a + b; }, x.row<X>(n), row, wpe.row<X>(n % T));
        else std::memcpy(x.row<X>(n), row, size_t(x.cols) * sizeof(X));
      }
    });
  });
}

void CpuOps::do_embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dx,
                                   const Tensor& tokens, int64_t T, bool accumulate_wte,
                                   bool accumulate_wpe) {
  constexpr int64_t slice = 64;  // channels of one task
  const int32_t* ids = tokens.as<int32_t>();
  const auto add = [](vf a, vf b) { return a + b; };
  if (!accumulate_wte) fill(dwte, 0);
  if (dwpe && !accumulate_wpe) fill(dwpe, 0);
  dispatch(dx, [&](auto type) {
    using X = decltype(type);
    pool_.chunks(dx.cols, slice, [&](int64_t first, int64_t last) {
      for (int64_t n = 0; n < dx.rows; n++) {
        const X* g = dx.row<X>(n) + first;
        float* token = dwte.row<float>(ids[n]) + first;
        simd::map(last - first, add, token, token, g);
        if (!dwpe) continue;
        float* position = dwpe.row<float>(n % T) + first;
        simd::map(last - first, add, position, position, g);
      }
    });
  });
}

}  // namespace loqal
