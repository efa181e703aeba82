// Element types and bfloat16. Names and codes follow safetensors.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace loqal {

enum class DType : int { F64, F32, BF16, F16, I64, I32, U32, U16, U8, I8 };

size_t size_of(DType type);       ///< bytes per element
const char* name_of(DType type);  ///< "F32", as in a safetensors header
DType dtype_from_name(const std::string& name, const std::string& where);  ///< Error names `where`

/// bfloat16: the upper half of an fp32. Conversion rounds to nearest even and keeps NaN a NaN.
struct bf16 {
  uint16_t bits;
};
static_assert(sizeof(bf16) == 2);

inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }
inline float to_float(float x) { return x; }

inline bf16 to_bf16(float x) {
  // Branch-free, so that the compiler vectorizes it: a NaN keeps its sign and becomes quiet.
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return bf16{uint16_t((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded)};
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::BF16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::U8;
}

float half_to_float(uint16_t bits);  ///< IEEE binary16 to fp32, subnormals included

}  // namespace loqal
