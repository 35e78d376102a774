/// Sines and cosines of several angles at once, to the bits of the C library's.
///
/// glibc's sine is within 0.548 of the last place of the true value (0.501 below 0.126, 0.518 above 0.855), and its cosine
/// within 0.518 (0.513 where it is larger than the sine), as its sysdeps/ieee754/dbl-64/s_sin.c states; below 0.126 it is
/// once 0.50505 off (glibc 2.36, at 0.11693354259849595), which the margins here allow. Here a value is computed with
/// what its rounding left out. Where that is so far from the middle between two neighbours that the library cannot have
/// rounded to another one, it is the result; the library is asked for the others, one in ten or twenty. So no bit depends
/// on the instruction set, nor on how the library computes, as long as it keeps its bounds.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace penstock {

/// A number of double precision and what is missing from it.
struct Split {
  double high, low;
};

/// a + b, where |a| >= |b| or a is 0.
[[gnu::always_inline]] inline Split fast_sum(double a, double b) noexcept {
  const double high = a + b;
  return {high, b - (high - a)};
}

[[gnu::always_inline]] inline Split exact_sum(double a, double b) noexcept {
  const double high = a + b, of_b = high - a;
  return {high, (a - (high - of_b)) + (b - of_b)};
}

[[gnu::always_inline]] inline Split exact_product(double a, double b) noexcept {
  const double high = a * b;
  return {high, std::fma(a, b, -high)};
}

/// Returns 1 where the library may have another value than `value`, which is `missing` away from the true one; else 0.
/// `error`: how far the library's error and that of `missing` may together reach beyond half of the last place.
[[gnu::always_inline]] inline std::int64_t is_doubtful(double value, double missing, double error) noexcept {
  const double power_of_two = std::bit_cast<double>(std::bit_cast<std::int64_t>(value) & 0x7ff0000000000000);
  const double margin = power_of_two * (0x1p-52 * error);
  return std::int64_t(value + (missing + margin) != value) | std::int64_t(value + (missing - margin) != value);
}

/// Replaces what is in doubt by what the library says.
template <std::size_t N, class Function>
[[gnu::always_inline]] inline void ask_library(const std::array<double, N>& angles,
                                               const std::array<std::int64_t, N>& in_doubt, Function function,
                                               std::array<double, N>& values) {
  static_assert(N <= 64);
  std::uint64_t doubts = 0;
  for (std::size_t i = 0; i < N; ++i) doubts |= std::uint64_t(in_doubt[i]) << i;
  for (; doubts != 0; doubts &= doubts - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(doubts));
    values[i] = function(angles[i]);
  }
}
inline double library_sine(double angle) noexcept { return std::sin(angle); }
inline double library_cosine(double angle) noexcept { return std::cos(angle); }

/// Sets `sine` and `cosine` to those of each of `angles`, most of which are within 0.25 of 0: others are right as well,
/// and slow.
template <std::size_t N>
[[gnu::always_inline]] inline void small_sines_and_cosines(const std::array<double, N>& angles,
                                                           std::array<double, N>& sine, std::array<double, N>& cosine) {
  alignas(64) std::array<std::int64_t, N> sine_in_doubt, cosine_in_doubt;
  for (std::size_t i = 0; i < N; ++i) {
    const double angle = angles[i];
    const Split square = exact_product(angle, angle);
    const double r2 = square.high;
    // r + r * (-r^2 / 6 + ...): five roundings of a term of at most 0.0105 of the whole, so 0.053 of the last place.
    const double added = angle * (r2 * (-1.0 / 6 + r2 * (1.0 / 120 + r2 * (-1.0 / 5040 + r2 * (1.0 / 362880 +
                         r2 * (-1.0 / 39916800 + r2 * (1.0 / 6227020800)))))));
    const Split s = fast_sum(angle, added);
    // 1 - r^2 / 2 + r^4 / 24 - ...
    const Split one = fast_sum(1.0, -0.5 * r2);
    const double rest = r2 * r2 * (1.0 / 24 + r2 * (-1.0 / 720 + r2 * (1.0 / 40320 + r2 * (-1.0 / 3628800 +
                        r2 * (1.0 / 479001600)))));
    const Split c = fast_sum(one.high, one.low + (rest - 0.5 * square.low));
    sine[i] = s.high;
    cosine[i] = c.high;
    const double size = std::abs(angle);
    const std::int64_t unusual = std::int64_t(!(size > 0x1p-26)) | std::int64_t(!(size < 0.25));
    sine_in_doubt[i] = is_doubtful(s.high, s.low, size < 0.126 ? 0.025 : 0.105) | unusual;
    cosine_in_doubt[i] = is_doubtful(c.high, c.low, 0.02) | unusual;
  }
  ask_library(angles, sine_in_doubt, library_sine, sine);
  ask_library(angles, cosine_in_doubt, library_cosine, cosine);
}

/// Sets `sine` and `cosine` to those of each of `angles`, and which of them are in doubt.
template <std::size_t N>
[[gnu::always_inline]] inline void near_sines_and_cosines(const std::array<double, N>& angles,
                                                          std::array<double, N>& sine, std::array<double, N>& cosine,
                                                          std::array<std::int64_t, N>& sine_in_doubt,
                                                          std::array<std::int64_t, N>& cosine_in_doubt) {
  for (std::size_t i = 0; i < N; ++i) {
    const double angle = angles[i];
    // The rest of the angle after whole quarters of a turn, which are in three parts: products with the first two are
    // exact for fewer than 2^20 quarters.
    const double shifted = angle * 0x1.45f306dc9c883p-1 + 0x1.8p52, quarters = shifted - 0x1.8p52;
    const auto quadrant = std::bit_cast<std::int64_t>(shifted);
    const Split reduced = exact_sum(angle - quarters * 0x1.921fb544p+0, -(quarters * 0x4.2d18469p-36));
    const Split rest = fast_sum(reduced.high, reduced.low - quarters * 0x8.98cc51701b838p-68);
    const double r = rest.high;
    Split square = exact_product(r, r);
    square.low += 2 * r * rest.low;
    const double r2 = square.high;

    // r + r * (-r^2 / 6 + r^4 / 120 - ...): the first term of the series with what is missing, the others without.
    Split third = exact_product(-0x1.5555555555555p-3, r2);
    third.low += -0x1.5555555555555p-3 * square.low - 0x1.5555555555555p-57 * r2;
    const double fifth = r2 * r2 * (1.0 / 120 + r2 * (-1.0 / 5040 + r2 * (1.0 / 362880 + r2 * (-1.0 / 39916800 +
                         r2 * (1.0 / 6227020800 + r2 * (-1.0 / 1307674368000 + r2 * (1.0 / 355687428096000)))))));
    Split series = fast_sum(third.high, fifth);
    series.low += third.low;
    Split added = exact_product(r, series.high);
    added.low += r * series.low + rest.low * series.high;
    Split s = fast_sum(r, added.high);
    s = fast_sum(s.high, s.low + (added.low + rest.low));

    // 1 - r^2 / 2 + r^4 / 24 - ...: the first two likewise.
    const Split one = fast_sum(1.0, -0.5 * r2);
    Split power = exact_product(r2, r2);
    power.low += 2 * r2 * square.low;
    Split fourth = exact_product(0x1.5555555555555p-5, power.high);
    fourth.low += 0x1.5555555555555p-5 * power.low + 0x1.5555555555555p-59 * power.high;
    const double sixth =
        power.high * r2 * (-1.0 / 720 + r2 * (1.0 / 40320 + r2 * (-1.0 / 3628800 + r2 * (1.0 / 479001600 +
        r2 * (-1.0 / 87178291200 + r2 * (1.0 / 20922789888000 - r2 * (1.0 / 6402373705728000)))))));
    Split c = fast_sum(one.high, fourth.high);
    c = fast_sum(c.high, c.low + (one.low + (fourth.low + (sixth - 0.5 * square.low))));

    const bool is_odd = (quadrant & 1) != 0;
    const std::int64_t sine_sign = (quadrant & 2) << 62, cosine_sign = ((quadrant + 1) & 2) << 62;
    sine[i] = std::bit_cast<double>(std::bit_cast<std::int64_t>(is_odd ? c.high : s.high) ^ sine_sign);
    cosine[i] = std::bit_cast<double>(std::bit_cast<std::int64_t>(is_odd ? s.high : c.high) ^ cosine_sign);
    // Too small for the bounds above, or too large for the reduction, or not a number.
    const std::int64_t unusual = std::int64_t(!(std::abs(r) > 0x1p-26)) | std::int64_t(!(std::abs(angle) < 64.0));
    const double size = std::abs(angle), error = size < 0.126 ? 0.015 : size < 0.856 ? 0.06 : 0.03;
    const std::int64_t s_in_doubt = is_doubtful(s.high, s.low, error) | unusual;
    const std::int64_t c_in_doubt = is_doubtful(c.high, c.low, 0.025) | unusual;
    sine_in_doubt[i] = is_odd ? c_in_doubt : s_in_doubt;
    cosine_in_doubt[i] = is_odd ? s_in_doubt : c_in_doubt;
  }
}

/// Sets `sine` and `cosine` to those of each of `angles`, most of which are within 64 of 0.
template <std::size_t N>
[[gnu::always_inline]] inline void sines_and_cosines(const std::array<double, N>& angles, std::array<double, N>& sine,
                                                     std::array<double, N>& cosine) {
  alignas(64) std::array<std::int64_t, N> sine_in_doubt, cosine_in_doubt;
  near_sines_and_cosines(angles, sine, cosine, sine_in_doubt, cosine_in_doubt);
  ask_library(angles, sine_in_doubt, library_sine, sine);
  ask_library(angles, cosine_in_doubt, library_cosine, cosine);
}

/// Sets `cosine` to that of each of `angles`, most of which are within 64 of 0.
template <std::size_t N>
[[gnu::always_inline]] inline void cosines(const std::array<double, N>& angles, std::array<double, N>& cosine) {
  alignas(64) std::array<std::int64_t, N> sine_in_doubt, cosine_in_doubt;
  alignas(64) std::array<double, N> sine;
  near_sines_and_cosines(angles, sine, cosine, sine_in_doubt, cosine_in_doubt);
  ask_library(angles, cosine_in_doubt, library_cosine, cosine);
}

}  // namespace penstock
