// Philox: known answers of Random123 (kat_vectors, philox4x32 10 rounds), and the normals' moments.
#include "core/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace loqal {
namespace {

void expect_words(const Philox4& got, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  EXPECT_EQ(got.v[0], a);
  EXPECT_EQ(got.v[1], b);
  EXPECT_EQ(got.v[2], c);
  EXPECT_EQ(got.v[3], d);
}

TEST(Philox, KnownAnswers) {
  expect_words(philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  const uint32_t f = 0xffffffff;
  expect_words(philox4x32({{f, f, f, f}}, f, f), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  expect_words(
      philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, StreamsDifferInEveryKeyPart) {
  std::set<uint64_t> first;
  const auto add = [&](const PhiloxStream& s) {
    first.insert(uint64_t(s.bits(0)) << 32 | s.bits(1));
  };
  add({1, Purpose::init});
  add({2, Purpose::init});
  add({1ull << 32 | 1, Purpose::init});
  add({1, Purpose::shuffle});
  add({1, Purpose::init, 1});
  add({1, Purpose::init, 0, 1});
  add({1, Purpose::init, 0, 0, 1});
  add({1, Purpose::init, 0, 0, 1ull << 32});
  EXPECT_EQ(first.size(), 8u);
}

TEST(Philox, UniformIsInRangeAndFlat) {
  const PhiloxStream stream(3, Purpose::test);
  const int n = 1 << 18, bins = 16;
  int count[bins] = {};
  for (int i = 0; i < n; i++) {
    const float u = stream.uniform(uint64_t(i));
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    count[int(u * bins)]++;
  }
  double chi2 = 0;
  for (const int c : count) chi2 += std::pow(c - n / bins, 2) / (n / bins);
  EXPECT_LT(chi2, 44.3);  // 99.99 % quantile of chi-squared with 15 degrees of freedom
}

TEST(Philox, NormalMomentsAndIndependence) {
  const int n = 1 << 20;
  const PhiloxStream a(7, Purpose::init, 0, 4), b(7, Purpose::init, 0, 5);
  double sum = 0, square = 0, fourth = 0, cross = 0, neighbour = 0;
  for (uint64_t i = 0; i < n; i++) {
    const double x = a.normal(i), y = b.normal(i);
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
    cross += x * y;
    neighbour += x * a.normal(i ^ 1);
  }
  // Standard errors of the sample means: variances 1, 2, 96, 1, and 2 (each pair is counted twice).
  const double sigma = 1 / std::sqrt(double(n));
  EXPECT_NEAR(sum / n, 0, 5 * sigma);
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0) * sigma);
  EXPECT_NEAR(cross / n, 0, 5 * sigma);
  EXPECT_NEAR(neighbour / n, 0, 5 * std::sqrt(2.0) * sigma);
}

}  // namespace
}  // namespace loqal
