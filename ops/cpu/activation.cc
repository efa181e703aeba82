// GELU (tanh form) and SwiGLU.
#include <algorithm>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;

namespace {

#define ALWAYS_INLINE [[gnu::always_inline]] inline  // so that the loops keep their constants

ALWAYS_INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + simd::exp(-x)); }

// With u = 2 sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh(u / 2)) / 2 = sigmoid(u), which needs one
// exponential and does not cancel where x is very negative.
constexpr float kLinear = 2 * 0.7978845608f, kCubic = kLinear * 0.044715f;

ALWAYS_INLINE vf gelu_gate(vf x) { return sigmoid(x * (kLinear + kCubic * x * x)); }

ALWAYS_INLINE vf gelu(vf x) { return x * gelu_gate(x); }

// Both the value and dy * derivative.
ALWAYS_INLINE void gelu_and_grad(vf x, vf dy, vf& y, vf& dx) {
  const vf s = gelu_gate(x);
  y = x * s;
  dx = dy * (s + y * (1.0f - s) * (kLinear + 3.0f * kCubic * x * x));
}

}  // namespace

void CpuOps::do_gelu_forward(const Tensor& y, const Tensor& x) {
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    for_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r++)
        simd::map(
            x.cols, [](vf v) { return gelu(v); }, y.row<X>(r), x.row<X>(r));
    });
  });
}

void CpuOps::do_gelu_backward(const Tensor& dx, const Tensor& y, const Tensor& dy,
                              const Tensor& x) {
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    for_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r++) {
        X *to_dx = dx.row<X>(r), *to_y = y ? y.row<X>(r) : nullptr;
        const X *from_dy = dy.row<X>(r), *from_x = x.row<X>(r);
        vf value, grad;
        simd::sweep(
            x.cols,
            [&](int64_t i) {
              gelu_and_grad(simd::load(from_x + i), simd::load(from_dy + i), value, grad);
              simd::store(to_dx + i, grad);
              if (to_y) simd::store(to_y + i, value);
            },
            [&](int64_t i, int n) {
              gelu_and_grad(simd::load_part(from_x + i, n), simd::load_part(from_dy + i, n), value,
                            grad);
              simd::store_part(to_dx + i, grad, n);
              if (to_y) simd::store_part(to_y + i, value, n);
            });
      }
    });
  });
}

void CpuOps::do_swiglu_forward(const Tensor& y, const Tensor& gate, const Tensor& up) {
  const auto f = [](vf g, vf u) { return g * sigmoid(g) * u; };
  dispatch(y, [&](auto type) {
    using X = decltype(type);
    for_rows(y.rows, y.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r++)
        simd::map(y.cols, f, y.row<X>(r), gate.row<X>(r), up.row<X>(r));
    });
  });
}

void CpuOps::do_swiglu_backward(const Tensor& dgate, const Tensor& dup, const Tensor& y,
                                const Tensor& dy, const Tensor& gate, const Tensor& up) {
  dispatch(dy, [&](auto type) {
    using X = decltype(type);
    for_rows(dy.rows, dy.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r++) {
        X *to_gate = dgate.row<X>(r), *to_up = dup.row<X>(r), *to_y = y ? y.row<X>(r) : nullptr;
        const X *d = dy.row<X>(r), *g = gate.row<X>(r), *u = up.row<X>(r);
        // All inputs of an element are read before its outputs are written: they may be the same
        // memory.
        const auto element = [&](auto load, auto put) {
          const vf gv = load(g), uv = load(u), dv = load(d);
          const vf s = sigmoid(gv), silu = gv * s;
          put(to_gate, dv * uv * (s + silu * (1.0f - s)));
          put(to_up, dv * silu);
          if (to_y) put(to_y, silu * uv);
        };
        simd::sweep(
            dy.cols,
            [&](int64_t i) {
              element([i](const X* p) { return simd::load(p + i); },
                      [i](X* p, vf v) { simd::store(p + i, v); });
            },
            [&](int64_t i, int n) {
              element([i, n](const X* p) { return simd::load_part(p + i, n); },
                      [i, n](X* p, vf v) { simd::store_part(p + i, v, n); });
            });
      }
    });
  });
}

}  // namespace loqal
