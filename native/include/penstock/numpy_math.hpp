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

}  // namespace penstock
