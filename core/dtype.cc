#include "core/dtype.h"

#include <array>
#include <cmath>

#include "core/error.h"

namespace loqal {

namespace {
struct TypeInfo {
  const char* name;
  size_t size;
};
constexpr std::array<TypeInfo, 10> kTypes = {{{"F64", 8},
                                              {"F32", 4},
                                              {"BF16", 2},
                                              {"F16", 2},
                                              {"I64", 8},
                                              {"I32", 4},
                                              {"U32", 4},
                                              {"U16", 2},
                                              {"U8", 1},
                                              {"I8", 1}}};
}  // namespace

size_t size_of(DType type) { return kTypes[size_t(type)].size; }
const char* name_of(DType type) { return kTypes[size_t(type)].name; }

DType dtype_from_name(const std::string& name, const std::string& where) {
  for (size_t i = 0; i < kTypes.size(); i++)
    if (name == kTypes[i].name) return DType(i);
  fail(cat(where, ": element type \"", name,
           "\" is not one of F64 F32 BF16 F16 I64 I32 U32 U16 U8 I8"));
}

float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::bit_cast<float>(0x7FC00000u) : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(float(mantissa), -24);
  return sign * std::ldexp(float(mantissa + 1024), exponent - 25);
}

}  // namespace loqal
