/// NumPy's squares of several numbers at once, to the bits of numpy_math.hpp.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "penstock/random/numpy_math.hpp"

namespace penstock {

/// Sets `out` to `x ** 2.0` of each: penstock::square, whose reasons hold here.
template <std::size_t N>
[[gnu::always_inline]] inline void squares_of(const std::array<double, N>& values, std::array<double, N>& out) {
  static_assert(N <= 64);
  alignas(64) std::array<std::int64_t, N> in_doubt;
  for (std::size_t i = 0; i < N; ++i) {
    const double product = values[i] * values[i], error = std::fma(values[i], values[i], -product);
    const auto bits = std::bit_cast<std::int64_t>(product);
    const double last_place = std::bit_cast<double>(bits & 0x7ff0000000000000) * 0x1p-52;
    out[i] = product;
    const std::int64_t is_far =
        std::int64_t(std::abs(error) < 0.48 * last_place) & std::int64_t((bits & 0xfffffffffffff) != 0);
    const std::int64_t in_range = std::int64_t(product > 0x1p-60) & std::int64_t(product < 0x1p60);
    in_doubt[i] = (in_range & (std::int64_t(error == 0.0) | is_far)) ^ 1;
  }
  std::uint64_t doubts = 0;
  for (std::size_t i = 0; i < N; ++i) doubts |= std::uint64_t(in_doubt[i]) << i;
  for (; doubts != 0; doubts &= doubts - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(doubts));
    out[i] = library_power(values[i], 2.0);
  }
}

}  // namespace penstock
