// Block quantization; see Ops::quantize. One warp for each block when quantizing, which happens at
// merges only; eight elements a thread when dequantizing, which every step does. The arithmetic is
// ops/block_codec.h's, the sums stand in the order of ops/cpu/quantize.cc: the same bytes.
#include "ops/block_codec.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

using codec::DynamicMap;
using codec::Nf4;

/// Which elements, and how they are rounded.
struct Source {
  int64_t numel, block, blocks;
  bool stochastic;
  PhiloxStream stream;

  __device__ int64_t end_of(int64_t b) const {
    return (b + 1) * block < numel ? (b + 1) * block : numel;
  }
  __device__ uint32_t random(int64_t i) const {
    return PhiloxStream::half(stream.block(uint64_t(i) / 8), uint64_t(i));
  }
};

template <class X>
__device__ uint32_t largest_magnitude(const X* x, const Source& s, int64_t b, int lane) {
  uint32_t largest = 0;
  for (int64_t i = b * s.block + lane; i < s.end_of(b); i += 32)
    largest = Larger()(largest, codec::magnitude(to_float(x[i])));
  return warp_reduce(largest, Larger());
}

template <class X>
__global__ void int8_kernel(int8_t* codes, float* scales, const X* x, Source s) {
  const int lane = int(threadIdx.x % 32);
  const int64_t b = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (b >= s.blocks) return;
  const float scale = codec::int8_scale(largest_magnitude(x, s, b, lane)),
              inverse = codec::inverse(scale);
  if (lane == 0) scales[b] = scale;
  for (int64_t i = b * s.block + lane; i < s.end_of(b); i += 32) {
    const float t = inverse == 0 ? 0.0f : to_float(x[i]) * inverse;
    codes[i] = codec::int8_code(s.stochastic ? codec::round_stochastic(t, s.random(i)) : rintf(t));
  }
}

/// A byte, two elements, for each lane: a block is 64 elements.
template <class X>
__global__ void nf4_kernel(uint8_t* codes, float* absmax, const X* x, Source s, Nf4 table) {
  const int lane = int(threadIdx.x % 32);
  const int64_t b = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (b >= s.blocks) return;
  const float largest = codec::block_absmax(largest_magnitude(x, s, b, lane)),
              inverse = codec::inverse(largest);
  if (lane == 0) absmax[b] = largest;
  const int64_t first = b * s.block + 2 * lane;
  int pair = 0;
  for (int64_t i = first; i < first + 2; i++) {
    int code = 7;
    if (i < s.numel && inverse != 0) {
      const float t = to_float(x[i]) * inverse;
      code =
          s.stochastic ? codec::nf4_stochastic(table, t, s.random(i)) : codec::nf4_code(table, t);
    }
    pair = pair << 4 | code;
  }
  if (first < s.numel) codes[first / 2] = uint8_t(pair);
}

constexpr int kGroup = int(QuantFormat::kGroup);

__global__ void group_sums_kernel(double* sums, const float* absmax, int64_t blocks,
                                  int64_t groups) {
  const int64_t g = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (g >= groups) return;
  double sum = 0;
  for (int64_t b = g * kGroup; b < (g + 1) * kGroup && b < blocks; b++) sum += double(absmax[b]);
  sums[g] = sum;
}

__global__ void offset_kernel(float* offset, const double* sums, int64_t blocks, int64_t groups) {
  double sum = 0;
  for (int64_t g = 0; g < groups; g++) sum += sums[g];
  *offset = float(sum / double(blocks));
}

/// A block of threads for each group.
__global__ void absmax_kernel(uint8_t* codes, float* scales, const float* absmax, int64_t blocks,
                              int64_t groups, DynamicMap map) {
  __shared__ float value[256];
  value[threadIdx.x] = map.value[threadIdx.x];
  const int64_t b = int64_t(blockIdx.x) * kGroup + threadIdx.x;
  const float offset = scales[groups], centred = b < blocks ? absmax[b] - offset : 0.0f;
  const uint32_t largest = block_reduce(codec::magnitude(centred), Larger(), 0u);
  const float scale = codec::block_absmax(largest);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  if (b < blocks) codes[b] = uint8_t(codec::absmax_code(value, absmax[b], scale, offset));
}

template <class Y, int W>
__global__ void int8_values_kernel(Y* y, const int8_t* codes, const float* scales, int64_t numel,
                                   int64_t block) {
  const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  if (at >= numel) return;
  const float scale = scales[at / block];
  if (W == 8 && at + 8 <= numel) {
    int8_t code[8];
    const uint2 word = *reinterpret_cast<const uint2*>(codes + at);
    std::memcpy(code, &word, sizeof code);
    Floats<8> values;
    for (int i = 0; i < 8; i++) values[i] = float(code[i]) * scale;
    store(y + at, values);
  } else {
    for (int64_t i = at; i < at + 8 && i < numel; i++)
      y[i] = from_float<Y>(float(codes[i]) * scale);
  }
}

template <class Y, int W>
__global__ void nf4_values_kernel(Y* y, const uint8_t* codes, const uint8_t* absmax,
                                  const float* scales, int64_t numel, int64_t groups, Nf4 table,
                                  DynamicMap map) {
  __shared__ float value[16];
  if (threadIdx.x < 16) value[threadIdx.x] = table.value[threadIdx.x];
  __syncthreads();
  const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  if (at >= numel) return;
  const int64_t b = at / 64;
  const float scale =
      codec::decoded_absmax(map.value[absmax[b]], scales[b / kGroup], scales[groups]);
  const auto code = [&](int64_t i) { return codes[i / 2] >> (i % 2 ? 0 : 4) & 15; };
  if (W == 8 && at + 8 <= numel) {
    Floats<8> values;
    const uint32_t word = *reinterpret_cast<const uint32_t*>(codes + at / 2);
    for (int i = 0; i < 8; i++) values[i] = value[word >> ((i * 4) ^ 4) & 15] * scale;
    store(y + at, values);
  } else {
    for (int64_t i = at; i < at + 8 && i < numel; i++) y[i] = from_float<Y>(value[code(i)] * scale);
  }
}

/// The parts of a matrix in the device's memory.
struct Parts {
  explicit Parts(const QTensor& q)
      : numel(q.numel()),
        blocks(q.format.blocks(numel)),
        groups(q.format.groups(numel)),
        codes(static_cast<uint8_t*>(q.data)),
        scales(codes + q.format.scales_at(numel)) {
    if (q.format.kind == QuantFormat::Kind::nf4)
      group_scales = reinterpret_cast<float*>(codes + q.format.group_scales_at(numel));
  }
  int64_t numel, blocks, groups;
  uint8_t *codes, *scales;
  float* group_scales = nullptr;
};

unsigned grid_of(int64_t items, int64_t per_block) { return unsigned(ceil_div(items, per_block)); }

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_quantize(const QTensor& q, const Tensor& x, Rounding rounding,
                          const PhiloxStream& stream_of) {
  const Parts p(q);
  if (p.numel == 0) return;
  const Source s = {p.numel, q.format.block, p.blocks, rounding == Rounding::stochastic, stream_of};
  const unsigned grid = grid_of(p.blocks, kThreads / 32);
  if (q.format.kind == QuantFormat::Kind::int8) {
    dispatch(x, [&](auto type) {
      using X = decltype(type);
      launch(int8_kernel<X>, grid, kThreads, 0, stream(), reinterpret_cast<int8_t*>(p.codes),
             reinterpret_cast<float*>(p.scales), pointer<const X>(x), s);
    });
    return;
  }
  auto* sums = static_cast<double*>(workspace(8 * p.groups + 4 * p.blocks));
  auto* absmax = reinterpret_cast<float*>(sums + p.groups);
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    launch(nf4_kernel<X>, grid, kThreads, 0, stream(), p.codes, absmax, pointer<const X>(x), s,
           codec::make_nf4());
  });
  launch(group_sums_kernel, grid_of(p.groups, kThreads), kThreads, 0, stream(), sums, absmax,
         p.blocks, p.groups);
  launch(offset_kernel, 1, 1, 0, stream(), p.group_scales + p.groups, sums, p.blocks, p.groups);
  launch(absmax_kernel, unsigned(p.groups), kGroup, 0, stream(), p.scales, p.group_scales, absmax,
         p.blocks, p.groups, codec::make_dynamic_map(true));
}

void CudaOps::do_dequantize(const Tensor& y, const QTensor& q) {
  const Parts p(q);
  if (p.numel == 0) return;
  const unsigned grid = grid_of(p.numel, 8 * kThreads);
  const bool aligned = reinterpret_cast<uintptr_t>(y.data) % 16 == 0;
  const auto launch_it = [&](auto type, auto width) {
    using Y = decltype(type);
    constexpr int W = width;
    if (q.format.kind == QuantFormat::Kind::int8)
      launch(int8_values_kernel<Y, W>, grid, kThreads, 0, stream(), pointer<Y>(y),
             reinterpret_cast<const int8_t*>(p.codes), reinterpret_cast<const float*>(p.scales),
             p.numel, q.format.block);
    else
      launch(nf4_values_kernel<Y, W>, grid, kThreads, 0, stream(), pointer<Y>(y), p.codes, p.scales,
             p.group_scales, p.numel, p.groups, codec::make_nf4(), codec::make_dynamic_map(true));
  };
  dispatch(y, [&](auto type) {
    if (aligned) launch_it(type, std::integral_constant<int, 8>{});
    else launch_it(type, std::integral_constant<int, 1>{});
  });
}

}  // namespace loqal
