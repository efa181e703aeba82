// Err: a number with a bound of the error of evaluating it in fp32 or bf16.
#pragma once
#include <cmath>

namespace loqal::test {

constexpr double kRoundF32 = 0x1p-24, kRoundBF16 = 0x1p-9;  // unit roundoff: half an ulp of 1

/// Value and running error bound (Wilkinson; Higham 2002, section 3.3) of an fp32 evaluation: first
/// order, each operation adds its roundoff, functions a few ulp. Worst case for any summation
/// order.
struct Err {
  double v = 0, e = 0;
  Err() = default;
  Err(double v_, double e_ = 0) : v(v_), e(e_) {}
};
inline Err operator+(Err a, Err b) {
  const double v = a.v + b.v;
  return {v, a.e + b.e + kRoundF32 * std::abs(v)};
}
inline Err operator-(Err a) { return {-a.v, a.e}; }
inline Err operator-(Err a, Err b) { return a + -b; }
inline Err operator*(Err a, Err b) {
  const double v = a.v * b.v;
  return {v, std::abs(a.v) * b.e + std::abs(b.v) * a.e + kRoundF32 * std::abs(v)};
}
inline Err operator/(Err a, Err b) {
  const double v = a.v / b.v;
  return {v, (a.e + std::abs(v) * b.e) / std::abs(b.v) + kRoundF32 * std::abs(v)};
}
inline Err& operator+=(Err& a, Err b) { return a = a + b; }
inline Err sqrt(Err a) {
  const double v = std::sqrt(a.v);
  return {v, (v > 0 ? a.e / (2 * v) : 0) + kRoundF32 * v};
}
// Inline polynomials and CUDA's fast functions are allowed a few ulp. The argument of exp is
// reduced in fp32, which costs another half ulp of it.
inline Err exp(Err a) {
  const double v = std::exp(a.v);
  return {v, v * (a.e + (4 + std::abs(a.v)) * kRoundF32)};
}
inline Err log(Err a) {
  const double v = std::log(a.v);
  return {v, a.e / std::abs(a.v) + 4 * kRoundF32 * (1 + std::abs(v))};
}
// By way of exp: absolute, not relative, accuracy near 0.
inline Err tanh(Err a) {
  const double v = std::tanh(a.v);
  return {v, (1 - v * v) * a.e + 4 * kRoundF32};
}

}  // namespace loqal::test
