// Philox4x32-10: counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). Why: a draw is a pure function of (seed, purpose, worker, tensor, step,
// index), never of call order, so threads, devices and resume all see the same numbers.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define LOQAL_HD __host__ __device__
#else
#define LOQAL_HD
#endif

namespace loqal {

struct Philox4 {
  uint32_t v[4];
};

/// The bijection itself: 128-bit counter, 64-bit key, 10 rounds.
LOQAL_HD inline Philox4 philox4x32(Philox4 c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c.v[0], p1 = uint64_t(0xCD9E8D57u) * c.v[2];
    c = Philox4{{uint32_t(p1 >> 32) ^ c.v[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c.v[3] ^ k1,
                 uint32_t(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// What a stream of numbers is for. Values are part of the checkpoint contract: never renumber.
enum class Purpose : uint32_t {
  init = 1,
  shuffle = 2,
  sample = 3,
  test = 4,
  rounding = 5,
  subspace = 6,  ///< random columns of sketches, completion of bases
  factor = 7,    ///< LoRA's
  merge = 8,     ///< rounding of frozen weights
  compensate = 9,
  jitter = 10,
  shards = 11
};

/// One stream: everything but the index.
struct PhiloxStream {
  uint32_t k0, k1;
  uint64_t step;

  LOQAL_HD PhiloxStream(uint64_t seed, Purpose purpose, uint32_t worker = 0, uint32_t tensor = 0,
                        uint64_t step_ = 0)
      : step(step_) {
    // One Philox call mixes the words of the key, so that nearby seeds and tensors are unrelated.
    const Philox4 k =
        philox4x32(Philox4{{uint32_t(seed), uint32_t(seed >> 32), uint32_t(purpose), worker}},
                   tensor, 0x6c6f7161u);
    k0 = k.v[0];
    k1 = k.v[1];
  }

  /// Four independent 32-bit words; the words of element i are those of block i / 4.
  LOQAL_HD Philox4 block(uint64_t index) const {
    return philox4x32(
        Philox4{{uint32_t(index), uint32_t(index >> 32), uint32_t(step), uint32_t(step >> 32)}}, k0,
        k1);
  }
  LOQAL_HD uint32_t bits(uint64_t i) const { return block(i / 4).v[i % 4]; }
  /// 16 of a block's 128 bits; those of element i are in block i / 8.
  LOQAL_HD static uint32_t half(const Philox4& block, uint64_t i) {
    return block.v[i % 8 / 2] >> (i % 2 * 16) & 0xFFFFu;
  }
  /// Uniform in [0, 1), 24 bits.
  LOQAL_HD float uniform(uint64_t i) const { return float(bits(i) >> 8) * 0x1p-24f; }
  /// Standard normal by Box-Muller, in double for accuracy; a pair shares one block.
  double normal(uint64_t i) const {
    const Philox4 b = block(i / 2);
    const double u = (double(b.v[0]) + 1.0) * 0x1p-32,
                 angle = 6.283185307179586 * (double(b.v[1]) * 0x1p-32);
    const double radius = std::sqrt(-2.0 * std::log(u));
    return radius * (i % 2 ? std::sin(angle) : std::cos(angle));
  }
};

/// One of x's two neighbours in bf16, the upper with the probability of x's distance from the
/// lower: the mean is x. random: 16 bits. The result is an fp32 whose lower half is zero; NaN and
/// infinity stay.
LOQAL_HD inline float round_stochastic_bf16(float x, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7F800000u) != 0x7F800000u) bits = (bits + random) & 0xFFFF0000u;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

}  // namespace loqal
