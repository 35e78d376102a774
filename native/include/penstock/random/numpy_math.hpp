/// Scalar arithmetic exactly as NumPy does it, for environments that must equal Gymnasium's bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "penstock/host_device.hpp"

namespace penstock {

/// The C library's pow. The exponent is volatile because compilers turn pow(x, 2) into x * x, which differs in the last
/// bit for about one value in a thousand.
[[gnu::noinline]] PENSTOCK_HOST_DEVICE inline double library_power(double x, double y) noexcept {
  const volatile double exponent = y;
  return std::pow(x, exponent);
}

/// pow(x, 2.0), mostly without it. What glibc and musl compute before they round is within 0.011 + 0.033 / 1024 *
/// |log2| of the last place of the true square, 0.013 in this range. Where the true square is further than 0.02 from
/// the middle between two neighbours both round to the same one: that is x * x, whose error is exact by Dekker's
/// product.
PENSTOCK_HOST_DEVICE inline double square(double x) noexcept {
  const double product = x * x;
  const auto bits = std::bit_cast<std::uint64_t>(product);
  const double shifted = 134217729.0 * x, high = shifted - (shifted - x), low = x - high;
  const double error = ((high * high - product) + 2.0 * high * low) + low * low;
  const double last_place = std::bit_cast<double>(bits & 0x7ff0000000000000) * 0x1p-52;
  // A power of two has another distance to its neighbour below; zero, infinity and what is not a number are out of
  // the range.
  const bool in_range = product > 0x1p-60 && product < 0x1p60, is_power_of_two = (bits & 0xfffffffffffff) == 0;
  if (in_range && (error == 0.0 || (!is_power_of_two && std::abs(error) < 0.48 * last_place))) [[likely]]
    return product;
  return library_power(x, 2.0);
}

/// `x ** y` of NumPy scalars: always what the C library's pow gives.
PENSTOCK_HOST_DEVICE inline double power(double x, double y) noexcept {
  return y == 2.0 ? square(x) : library_power(x, y);
}
PENSTOCK_HOST_DEVICE inline float power(float x, float y) noexcept {
  const volatile float exponent = y;
  return std::pow(x, exponent);
}

/// `x % y` of Python and NumPy: the sign of the divisor.
PENSTOCK_HOST_DEVICE inline double modulo(double x, double y) noexcept {
  const double rest = std::fmod(x, y);
  if (rest == 0.0) return std::copysign(0.0, y);
  return (rest < 0.0) != (y < 0.0) ? rest + y : rest;
}

/// `np.clip(x, low, high)`, by value: std::clamp refers to its bounds, and a GPU can't refer to a constant of a class.
template <class T>
PENSTOCK_HOST_DEVICE constexpr T clip(T x, T low, T high) noexcept {
  return x < low ? low : high < x ? high : x;
}

/// `np.logaddexp(x, y)`: log(exp(x) + exp(y)).
PENSTOCK_HOST_DEVICE inline double log_add_exp(double x, double y) noexcept {
  if (x == y) return x + 0.693147180559945309417232121458176568;
  return x > y ? x + std::log1p(std::exp(y - x)) : y + std::log1p(std::exp(x - y));
}

/// `np.cos` and `np.sin` of float32 within pi/4 of 0. NumPy has its own polynomials for float32 wherever the processor
/// can fuse a multiplication and an addition; they are not the C library's functions. For float64 it takes those, as
/// std::cos and std::sin do.
PENSTOCK_HOST_DEVICE inline float small_cosine(float x) noexcept {
  const float square = x * x;
  float sum = std::fma(0x1.98e616p-16f, square, -0x1.6c06dcp-10f);
  sum = std::fma(sum, square, 0x1.55553cp-05f);
  sum = std::fma(sum, square, -0.5f);
  return std::fma(sum, square, 1.0f);
}
PENSTOCK_HOST_DEVICE inline float small_sine(float x) noexcept {
  const float square = x * x;
  float sum = std::fma(0x1.7d3bbcp-19f, square, -0x1.a06bbap-13f);
  sum = std::fma(sum, square, 0x1.11119ap-07f);
  sum = std::fma(sum, square, -0x1.555556p-03f);
  return std::fma(sum * square, x, x);
}

}  // namespace penstock
