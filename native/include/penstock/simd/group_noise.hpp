/// Fills noise for many counters at once, to the bits of counter_noise.hpp.
///
/// A number is computed in double precision to within a few places of its last, and rounded to float32 as the C library's
/// would be. Where the two might round differently, which is so for one in millions, the library is asked.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>

#include "penstock/random/counter_noise.hpp"
#include "penstock/simd/group.hpp"
#include "penstock/simd/sine_cosine.hpp"

namespace penstock {

/// The words of `group_size` blocks: the first of each, then the second of each, and so on.
using GroupWords = std::array<std::array<std::uint32_t, group_size>, 4>;

/// Philox4x32-10 of each counter, in place.
[[gnu::always_inline]] inline void philox_of(GroupWords& words, std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < group_size; ++i) {
      const std::uint64_t left = std::uint64_t{0xd2511f53u} * words[0][i];
      const std::uint64_t right = std::uint64_t{0xcd9e8d57u} * words[2][i];
      words[0][i] = static_cast<std::uint32_t>(right >> 32) ^ words[1][i] ^ key[0];
      words[1][i] = static_cast<std::uint32_t>(right);
      words[2][i] = static_cast<std::uint32_t>(left >> 32) ^ words[3][i] ^ key[1];
      words[3][i] = static_cast<std::uint32_t>(left);
    }
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
}

/// The logarithms of positive normal numbers, to within 1e-15 of their value: with m from sqrt(1/2) to sqrt(2),
/// log(2^e m) = e log(2) + 2 atanh((m - 1) / (m + 1)).
[[gnu::always_inline]] inline void near_logarithms(const GroupValues& values, GroupValues& found) noexcept {
  for (std::size_t i = 0; i < group_size; ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(values[i]);
    const std::uint64_t biased = (bits - 0x3fe6a09e667f3bcdu + (std::uint64_t{1024} << 52)) >> 52;
    const double exponent = std::bit_cast<double>(biased | 0x4330000000000000u) - (0x1p52 + 1024.0);
    const double m = std::bit_cast<double>(bits - ((biased - 1024u) << 52));
    const double t = (m - 1.0) / (m + 1.0), t2 = t * t;
    double series = 1.0 / 23;
    series = std::fma(series, t2, 1.0 / 21);
    series = std::fma(series, t2, 1.0 / 19);
    series = std::fma(series, t2, 1.0 / 17);
    series = std::fma(series, t2, 1.0 / 15);
    series = std::fma(series, t2, 1.0 / 13);
    series = std::fma(series, t2, 1.0 / 11);
    series = std::fma(series, t2, 1.0 / 9);
    series = std::fma(series, t2, 1.0 / 7);
    series = std::fma(series, t2, 1.0 / 5);
    series = std::fma(series, t2, 1.0 / 3);
    const double twice = t + t;
    found[i] = std::fma(exponent, std::numbers::ln2, std::fma(twice * t2, series, twice));
  }
}

/// Rounds `values`, which are within `margins` of the library's, to float32; `exact(i)` is the library's float.
template <class Exact>
[[gnu::always_inline]] inline void round_to_float(const GroupValues& values, const GroupValues& margins, Exact exact,
                                                  std::array<float, group_size>& out) {
  alignas(64) std::array<std::int32_t, group_size> in_doubt;
  for (std::size_t i = 0; i < group_size; ++i) {
    const auto below = static_cast<float>(values[i] - margins[i]), above = static_cast<float>(values[i] + margins[i]);
    out[i] = above;
    in_doubt[i] = below != above;
  }
  std::uint64_t doubts = 0;
  for (std::size_t i = 0; i < group_size; ++i) doubts |= std::uint64_t(in_doubt[i]) << i;
  for (; doubts != 0; doubts &= doubts - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(doubts));
    out[i] = exact(i);
  }
}

/// The first `count` of the four values of each block of words, as `transform` has them (a normal pair is always whole).
template <Noise kind>
[[gnu::always_inline]] inline void transform_group(const GroupWords& words, std::size_t count,
                                                   std::array<std::array<float, group_size>, 4>& values) {
  constexpr double error = 4e-15;
  const auto open_units = [](const std::array<std::uint32_t, group_size>& from, GroupValues& out) {
    for (std::size_t i = 0; i < group_size; ++i) out[i] = (from[i] + 0.5) * 0x1p-32;
  };
  const auto exact = [&](std::size_t place) {
    return [&words, place](std::size_t i) {
      return transform<kind>({words[0][i], words[1][i], words[2][i], words[3][i]}, 4)[place];
    };
  };
  alignas(64) GroupValues units, logarithms, margins;
  if constexpr (kind == Noise::uniform) {
    for (std::size_t k = 0; k < count; ++k)
      for (std::size_t i = 0; i < group_size; ++i)
        values[k][i] = static_cast<float>(((words[k][i] >> 9) + 0.5) * 0x1p-23);
  } else if constexpr (kind == Noise::gumbel) {
    for (std::size_t k = 0; k < count; ++k) {
      open_units(words[k], units);
      near_logarithms(units, logarithms);
      for (std::size_t i = 0; i < group_size; ++i) units[i] = -logarithms[i];
      near_logarithms(units, logarithms);
      for (std::size_t i = 0; i < group_size; ++i) {
        logarithms[i] = -logarithms[i];
        margins[i] = error * (1.0 + std::abs(logarithms[i]));
      }
      round_to_float(logarithms, margins, exact(k), values[k]);
    }
  } else {
    alignas(64) GroupValues angles, sine, cosine;
    alignas(64) std::array<std::int64_t, group_size> sine_in_doubt, cosine_in_doubt;
    for (std::size_t k = 0; k < count; k += 2) {
      open_units(words[k], units);
      open_units(words[k + 1], angles);
      for (std::size_t i = 0; i < group_size; ++i) angles[i] = 2.0 * std::numbers::pi * angles[i];
      near_logarithms(units, logarithms);
      near_sines_and_cosines(angles, sine, cosine, sine_in_doubt, cosine_in_doubt);
      for (std::size_t i = 0; i < group_size; ++i) {
        const double radius = std::sqrt(-2.0 * logarithms[i]);
        cosine[i] *= radius;
        sine[i] *= radius;
        // Near a zero of theirs, sine and cosine are small differences of the angle, which is rounded itself.
        margins[i] = error * radius;
      }
      round_to_float(cosine, margins, exact(k), values[k]);
      round_to_float(sine, margins, exact(k + 1), values[k + 1]);
    }
  }
}

/// As `fill`.
template <Noise kind>
[[gnu::always_inline]] inline void fill_in_groups(const Philox& stream, std::span<const std::uint32_t> environments,
                                                  std::uint32_t round, std::size_t steps, std::size_t width,
                                                  std::span<float> out) {
  const std::size_t columns = (width + 3) / 4, count = width < 4 ? width : 4;
  const std::size_t blocks = steps * environments.size() * columns;
  std::size_t step = 0, environment = 0, column = 0, written = 0;
  alignas(64) GroupWords words;
  alignas(64) std::array<std::array<float, group_size>, 4> values;
  for (std::size_t block = 0; block < blocks; block += group_size) {
    // The last group is filled up with the last counter.
    const std::size_t present = blocks - block < group_size ? blocks - block : group_size;
    std::array<std::size_t, group_size> lengths;
    for (std::size_t i = 0; i < group_size; ++i) {
      words[0][i] = static_cast<std::uint32_t>(column);
      words[1][i] = static_cast<std::uint32_t>(step);
      words[2][i] = round;
      words[3][i] = environments[environment];
      lengths[i] = width - column * 4 < 4 ? width - column * 4 : 4;
      if (i + 1 >= present) continue;
      if (++column == columns) {
        column = 0;
        if (++environment == environments.size()) environment = 0, ++step;
      }
    }
    if (block + group_size < blocks && ++column == columns) {
      column = 0;
      if (++environment == environments.size()) environment = 0, ++step;
    }
    philox_of(words, stream.key());
    transform_group<kind>(words, count, values);
    for (std::size_t i = 0; i < present; ++i)
      for (std::size_t k = 0; k < lengths[i]; ++k) out[written++] = values[k][i];
  }
}

using NoiseFiller = void (*)(const Philox&, std::span<const std::uint32_t>, std::uint32_t, std::size_t, std::size_t,
                             std::span<float>);

#if PENSTOCK_HAS_SIMD
template <Noise kind>
[[gnu::target("avx2,fma")]] void fill_avx2(const Philox& stream, std::span<const std::uint32_t> environments,
                                           std::uint32_t round, std::size_t steps, std::size_t width,
                                           std::span<float> out) {
  fill_in_groups<kind>(stream, environments, round, steps, width, out);
}

template <Noise kind>
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] void fill_avx512(const Philox& stream,
                                                                  std::span<const std::uint32_t> environments,
                                                                  std::uint32_t round, std::size_t steps,
                                                                  std::size_t width, std::span<float> out) {
  fill_in_groups<kind>(stream, environments, round, steps, width, out);
}
#endif

/// Returns the fastest function for this processor that fills noise.
template <Noise kind>
[[nodiscard]] NoiseFiller noise_filler() {
#if PENSTOCK_HAS_SIMD
  if (runs_avx512()) return fill_avx512<kind>;
  if (runs_avx2()) return fill_avx2<kind>;
#endif
  return fill<kind>;
}

}  // namespace penstock
