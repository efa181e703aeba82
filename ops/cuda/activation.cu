// GELU (tanh form) and SwiGLU. Bound by memory: one thread takes one pack of each operand.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

constexpr float kSqrt2OverPi = 0.7978845608f, kCubic = 0.044715f;

__device__ float gelu_tanh(float x) { return tanhf(kSqrt2OverPi * (x + kCubic * x * x * x)); }
__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class X, int W>
__global__ void gelu_forward_kernel(View<X> y, View<const X> x, int64_t rows, int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t r, int64_t pack) {
    Floats<W> v = load<W>(x.row(r) + pack * W);
    for (int i = 0; i < W; i++) v[i] = 0.5f * v[i] * (1.0f + gelu_tanh(v[i]));
    store(y.row(r) + pack * W, v);
  });
}

// dx may be dy: a thread reads its pack before it writes it.
template <class X, int W>
__global__ void gelu_backward_kernel(View<X> dx, View<X> y, View<const X> dy, View<const X> x,
                                     int64_t rows, int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t r, int64_t pack) {
    Floats<W> v = load<W>(x.row(r) + pack * W), g = load<W>(dy.row(r) + pack * W);
    for (int i = 0; i < W; i++) {
      const float t = gelu_tanh(v[i]);
      const float inner = kSqrt2OverPi * (1.0f + 3.0f * kCubic * v[i] * v[i]);
      g[i] *= 0.5f * (1.0f + t) + 0.5f * v[i] * (1.0f - t * t) * inner;
      v[i] = 0.5f * v[i] * (1.0f + t);
    }
    store(dx.row(r) + pack * W, g);
    if (y) store(y.row(r) + pack * W, v);
  });
}

template <class X, int W>
__global__ void swiglu_forward_kernel(View<X> y, View<const X> gate, View<const X> up, int64_t rows,
                                      int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t r, int64_t pack) {
    Floats<W> g = load<W>(gate.row(r) + pack * W), u = load<W>(up.row(r) + pack * W);
    for (int i = 0; i < W; i++) g[i] = g[i] * sigmoid(g[i]) * u[i];
    store(y.row(r) + pack * W, g);
  });
}

// dgate may be gate, dup may be up.
template <class X, int W>
__global__ void swiglu_backward_kernel(View<X> dgate, View<X> dup, View<X> y, View<const X> dy,
                                       View<const X> gate, View<const X> up, int64_t rows,
                                       int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t r, int64_t pack) {
    Floats<W> g = load<W>(gate.row(r) + pack * W), u = load<W>(up.row(r) + pack * W);
    const Floats<W> d = load<W>(dy.row(r) + pack * W);
    Floats<W> value;
    for (int i = 0; i < W; i++) {
      const float s = sigmoid(g[i]), silu = g[i] * s;
      value[i] = silu * u[i];
      g[i] = d[i] * u[i] * (s + silu * (1.0f - s));
      u[i] = d[i] * silu;
    }
    store(dgate.row(r) + pack * W, g);
    store(dup.row(r) + pack * W, u);
    if (y) store(y.row(r) + pack * W, value);
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_gelu_forward(const Tensor& y, const Tensor& x) {
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({y, x}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(x.rows, x.cols / W);
      if (g.empty()) return;
      launch(gelu_forward_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(y), view<const X>(x),
             g.rows, g.packs);
    });
  });
}

void CudaOps::do_gelu_backward(const Tensor& dx, const Tensor& y, const Tensor& dy,
                               const Tensor& x) {
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({dx, y, dy, x}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(x.rows, x.cols / W);
      if (g.empty()) return;
      launch(gelu_backward_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(dx), view<X>(y),
             view<const X>(dy), view<const X>(x), g.rows, g.packs);
    });
  });
}

void CudaOps::do_swiglu_forward(const Tensor& y, const Tensor& gate, const Tensor& up) {
  dispatch(y, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({y, gate, up}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(y.rows, y.cols / W);
      if (g.empty()) return;
      launch(swiglu_forward_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(y),
             view<const X>(gate), view<const X>(up), g.rows, g.packs);
    });
  });
}

void CudaOps::do_swiglu_backward(const Tensor& dgate, const Tensor& dup, const Tensor& y,
                                 const Tensor& dy, const Tensor& gate, const Tensor& up) {
  dispatch(dy, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({dgate, dup, y, dy, gate, up}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(dy.rows, dy.cols / W);
      if (g.empty()) return;
      launch(swiglu_backward_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(dgate),
             view<X>(dup), view<X>(y), view<const X>(dy), view<const X>(gate), view<const X>(up),
             g.rows, g.packs);
    });
  });
}

}  // namespace loqal
