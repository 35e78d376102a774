/// Scalar arithmetic exactly as NumPy does it, for environments that must equal Gymnasium's bit for bit.
#pragma once

#include <cmath>

namespace penstock {

/// `x ** y` of NumPy scalars: always the C library's pow. The exponent is volatile because compilers turn pow(x, 2)
/// into x * x, which differs in the last bit for about one value in a thousand.
inline double power(double x, double y) noexcept {
  const volatile double exponent = y;
  return std::pow(x, exponent);
}
inline float power(float x, float y) noexcept {
  const volatile float exponent = y;
  return std::pow(x, exponent);
}

/// `x % y` of Python and NumPy: the sign of the divisor.
inline double modulo(double x, double y) noexcept {
  const double rest = std::fmod(x, y);
  if (rest == 0.0) return std::copysign(0.0, y);
  return (rest < 0.0) != (y < 0.0) ? rest + y : rest;
}

/// `np.logaddexp(x, y)`: log(exp(x) + exp(y)).
inline double log_add_exp(double x, double y) noexcept {
  if (x == y) return x + 0.693147180559945309417232121458176568;
  return x > y ? x + std::log1p(std::exp(y - x)) : y + std::log1p(std::exp(x - y));
}

/// `np.cos` and `np.sin` of float32 within pi/4 of 0. NumPy has its own polynomials for float32 wherever the processor
/// can fuse a multiplication and an addition; they are not the C library's functions. For float64 it takes those, as
/// std::cos and std::sin do.
inline float small_cosine(float x) noexcept {
  const float square = x * x;
  float sum = std::fma(0x1.98e616p-16f, square, -0x1.6c06dcp-10f);
  sum = std::fma(sum, square, 0x1.55553cp-05f);
  sum = std::fma(sum, square, -0.5f);
  return std::fma(sum, square, 1.0f);
}
inline float small_sine(float x) noexcept {
  const float square = x * x;
  float sum = std::fma(0x1.7d3bbcp-19f, square, -0x1.a06bbap-13f);
  sum = std::fma(sum, square, 0x1.11119ap-07f);
  sum = std::fma(sum, square, -0x1.555556p-03f);
  return std::fma(sum * square, x, x);
}

}  // namespace penstock
