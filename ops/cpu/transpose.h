// 8 x 8 blocks of numbers, transposed in registers. Whatever the width of the machine's vectors: a
// block of 16 x 16 would need more registers than AVX2 has.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace loqal::simd {

constexpr int kSide = 8;
typedef float Row __attribute__((vector_size(kSide * 4)));

inline Row load_row(const float* p) {
  Row v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Row load_row(const bf16* p) {
  typedef uint32_t Bits __attribute__((vector_size(kSide * 4)));
  typedef uint16_t Half __attribute__((vector_size(kSide * 2)));
  Half h;
  std::memcpy(&h, p, sizeof h);
  return Row(__builtin_convertvector(h, Bits) << 16);
}
inline void store_row(float* p, Row v) { std::memcpy(p, &v, sizeof v); }

/// Swaps the off-diagonal quarters of each 2D x 2D block.
template <int D>
inline void swap_quarters(Row (&a)[kSide]) {
  constexpr auto low = [](int c) { return c & D ? c - D + kSide : c; };
  constexpr auto high = [](int c) { return c & D ? c + kSide : c + D; };
#pragma GCC unroll 8
  for (int r = 0; r < kSide; r++) {
    if (r & D) continue;
    const Row x = a[r], y = a[r + D];
    a[r] = __builtin_shufflevector(x, y, low(0), low(1), low(2), low(3), low(4), low(5), low(6),
                                   low(7));
    a[r + D] = __builtin_shufflevector(x, y, high(0), high(1), high(2), high(3), high(4), high(5),
                                       high(6), high(7));
  }
}

inline void transpose(Row (&block)[kSide]) {
  swap_quarters<4>(block);
  swap_quarters<2>(block);
  swap_quarters<1>(block);
}

}  // namespace loqal::simd
