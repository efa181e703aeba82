// AdamW with moments in 8 bits; see Ops::adamw8bit. A block of 256 threads for each block of
// moments, one element a thread; 14 bytes move per parameter where fp32 moments need 28.
#include "ops/block_codec.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

struct Codes {
  uint8_t* codes;
  float* absmax;
};

constexpr int kBlock = int(kMomentBlock);

/// The block's absmax: stored, and its inverse.
__device__ float store_absmax(float* absmax, float x) {
  const float largest = codec::block_absmax(block_reduce(codec::magnitude(x), Larger(), 0u));
  if (threadIdx.x == 0) *absmax = largest;
  return codec::inverse(largest);
}

template <class P>
__global__ void adamw8bit_kernel(P* p, bf16_t* copy, const float* g, Codes m, Codes v,
                                 int64_t numel, codec::AdamStep step, PhiloxStream rounding,
                                 codec::DynamicMap m_map, codec::DynamicMap v_map) {
  __shared__ float m_value[256], v_value[256];
  const int t = int(threadIdx.x);
  m_value[t] = m_map.value[t];
  v_value[t] = v_map.value[t];
  __syncthreads();
  for (int64_t b = blockIdx.x; b * kBlock < numel; b += gridDim.x) {
    const int64_t i = b * kBlock + t;
    float mi = 0, vi = 0;
    if (i < numel) {
      mi = m_value[m.codes[i]] * m.absmax[b];
      vi = v_value[v.codes[i]] * v.absmax[b];
      float next = step(to_float(p[i]), g[i], mi, vi);
      if constexpr (std::is_same_v<P, bf16_t>)
        next = round_stochastic_bf16(
            next, PhiloxStream::half(rounding.block(uint64_t(i) / 8), uint64_t(i)));
      p[i] = from_float<P>(next);
      if (copy) copy[i] = from_float<bf16_t>(next);
    }
    // The barriers in here also stand between the old scales' last use and their overwriting.
    __syncthreads();
    const float m_inverse = store_absmax(m.absmax + b, mi),
                v_inverse = store_absmax(v.absmax + b, vi);
    if (i < numel) {
      m.codes[i] = uint8_t(codec::first_moment_code(m_value, mi, m_inverse));
      v.codes[i] = uint8_t(codec::second_moment_code(v_value, vi, v_inverse));
    }
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_adamw8bit(const Tensor& p, const Tensor& copy, const Tensor& g, const Moment8& m,
                           const Moment8& v, const AdamWArgs& args) {
  const int64_t blocks = ceil_div(p.numel(), kMomentBlock);
  if (blocks == 0) return;
  constexpr int64_t most = 4096;
  const auto codes = [](const Moment8& x) {
    return Codes{static_cast<uint8_t*>(x.codes.data), pointer<float>(x.absmax)};
  };
  dispatch(p, [&](auto type) {
    using P = decltype(type);
    launch(adamw8bit_kernel<P>, unsigned(std::min(most, blocks)), kBlock, 0, stream(),
           pointer<P>(p), pointer<bf16_t>(copy), pointer<const float>(g), codes(m), codes(v),
           p.numel(), codec::adam_step(args), args.rounding, codec::make_dynamic_map(true),
           codec::make_dynamic_map(false));
  });
}

}  // namespace loqal
