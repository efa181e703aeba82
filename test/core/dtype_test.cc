// Element types: every 16-bit pattern, and rounding against the real numbers in double.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/philox.h"

namespace loqal {
namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(DType, NamesAndSizes) {
  for (const auto& [name, size] : {std::pair{"F64", 8u},
                                   {"F32", 4u},
                                   {"BF16", 2u},
                                   {"F16", 2u},
                                   {"I64", 8u},
                                   {"I32", 4u},
                                   {"U32", 4u},
                                   {"U16", 2u},
                                   {"U8", 1u},
                                   {"I8", 1u}}) {
    const DType type = dtype_from_name(name, "here");
    EXPECT_STREQ(name_of(type), name);
    EXPECT_EQ(size_of(type), size);
  }
  EXPECT_THROW(dtype_from_name("F8_E4M3", "here"), Error);
}

TEST(DType, Bf16RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const float x = to_float(bf16{uint16_t(bits)});
    const bf16 back = to_bf16(x);
    EXPECT_EQ(back.bits, std::isnan(x) ? bits | 0x40 : bits);  // a NaN becomes quiet, same sign
  }
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(from_bits(0x3F808000)).bits, 0x3F80);  // a tie goes to the even neighbour: down
  EXPECT_EQ(to_bf16(from_bits(0x3F818000)).bits, 0x3F82);  // and up
  EXPECT_EQ(to_bf16(from_bits(0x3F808001)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(from_bits(0x3F817FFF)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // overflows to infinity
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xFF80);
  EXPECT_EQ(to_bf16(from_bits(0x00008000)).bits, 0);  // subnormal tie to even zero
  EXPECT_EQ(to_bf16(from_bits(0x00008001)).bits, 1);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(from_bits(0x7F800001)))));  // its mantissa is cut away
  EXPECT_TRUE(std::isnan(to_float(to_bf16(from_bits(0x7FFFFFFF)))));
}

TEST(DType, Bf16IsTheNearestOfItsNeighbours) {
  const PhiloxStream random(1, Purpose::test);
  for (uint64_t i = 0; i < 200'000; i++) {
    const float x = from_bits(random.bits(i));
    const uint16_t bits = to_bf16(x).bits;
    if (!std::isfinite(x) || !std::isfinite(to_float(bf16{bits}))) continue;
    const double error = std::abs(double(x) - to_float(bf16{bits}));
    for (const int step : {-1, 1}) {
      const float other = to_float(bf16{uint16_t(bits + step)});
      if (!std::isfinite(other)) continue;
      ASSERT_LE(error, std::abs(double(x) - other)) << x;
    }
  }
}

TEST(DType, HalfToFloatEveryPattern) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const float x = half_to_float(uint16_t(bits));
    const int e = int(bits >> 10 & 31);
    const double m = double(bits & 1023) / 1024, sign = bits & 0x8000 ? -1 : 1;
    if (e == 31 && m != 0) {
      EXPECT_TRUE(std::isnan(x)) << bits;
      continue;
    }
    const double expected =
        e == 31 ? sign * INFINITY : sign * (e ? std::pow(2.0, e - 15) * (1 + m) : m * 0x1p-14);
    EXPECT_EQ(double(x), expected) << bits;
    EXPECT_EQ(std::signbit(x), sign < 0) << bits;
  }
}

}  // namespace
}  // namespace loqal
