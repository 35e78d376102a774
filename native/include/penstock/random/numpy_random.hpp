/// NumPy's seeding and generator in C++: `np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))`.
///
/// Guarantees the same bits as NumPy for SeedSequence, PCG64 and the distributions here, in any mixture of draws, which
/// is what makes an environment equal to Gymnasium's seed for seed. An array of NumPy's, `size=n`, is n draws one by
/// one. It is not a general random library: only what environments draw is here.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/host_device.hpp"
#include "penstock/random/seed_sequence.hpp"
#include "penstock/random/ziggurat_tables.hpp"

namespace penstock {

/// NumPy's PCG64 (XSL-RR 128/64) with the distributions that environments use. 40 bytes, trivially copyable.
class Rng {
  __extension__ using Wide = unsigned __int128;

 public:
  /// State high, state low, increment high, increment low, and the half of a word that the next draw of 32 bits takes
  /// (`has_half` + the half; 0 if there is none), which NumPy calls has_uint32 and uinteger.
  using Words = std::array<std::uint64_t, 5>;
  static constexpr std::uint64_t has_half = std::uint64_t{1} << 32;

  constexpr Rng() noexcept : Rng(0) {}
  explicit constexpr Rng(std::uint64_t seed) noexcept {
    const auto words = SeedSequence(seed).generate<4>();
    const Wide increment = (join(words[2], words[3]) << 1) | 1u;
    words_ = {0, 0, high(increment), low(increment), 0};
    set_state(increment + join(words[0], words[1]));
    advance();
  }

  constexpr std::uint64_t next() noexcept {
    const Wide state = advance();
    const std::uint64_t folded = high(state) ^ low(state);
    const auto turn = static_cast<unsigned>(high(state) >> 58);
    return (folded >> turn) | (folded << ((64u - turn) & 63u));
  }

  /// 32 bits: of a word of 64 first the lower half, at the next such draw the upper, whatever is drawn in between.
  constexpr std::uint32_t next_half() noexcept {
    std::uint64_t& half = words_[4];
    if (half != 0) {
      const auto kept = static_cast<std::uint32_t>(half);
      half = 0;
      return kept;
    }
    const std::uint64_t word = next();
    half = has_half | (word >> 32);
    return static_cast<std::uint32_t>(word);
  }

  /// `Generator.random()`: 53 bits in [0, 1).
  constexpr double random() noexcept { return static_cast<double>(next() >> 11) * (1.0 / 9007199254740992.0); }

  /// `Generator.uniform(low, high)`.
  constexpr double uniform(double low, double high) noexcept { return low + (high - low) * random(); }

  /// `Generator.uniform(low, high, size=out.size())`.
  constexpr void uniform(double low, double high, std::span<double> out) noexcept {
    for (double& value : out) value = uniform(low, high);
  }

  /// `Generator.integers(low, high)` with NumPy's default dtype int64: low <= value < high. The caller sees to it that
  /// low < high.
  constexpr std::int64_t integers(std::int64_t low, std::int64_t high) noexcept {
    const std::uint64_t offset = static_cast<std::uint64_t>(low), max_value = static_cast<std::uint64_t>(high) - offset - 1;
    return static_cast<std::int64_t>(offset + up_to(max_value));
  }

  /// 0 to `max_value`, at most 2**32 - 1, inclusive, as NumPy's shuffles draw it: bits that suffice, until they are in range.
  constexpr std::uint32_t interval(std::uint64_t max_value) noexcept {
    if (max_value == 0) return 0;
    const auto mask = static_cast<std::uint32_t>(std::bit_ceil(max_value + 1) - 1);
    std::uint32_t value = next_half() & mask;
    while (value > max_value) value = next_half() & mask;
    return value;
  }

  /// `Generator.standard_normal()`.
  PENSTOCK_HOST_DEVICE double standard_normal() noexcept {
    for (;;) {
      const std::uint64_t word = next();
      const std::size_t strip = word & 0xff;
      const std::uint64_t distance = (word >> 9) & 0x000fffffffffffff;
      const double size = static_cast<double>(distance) * ziggurat::width(strip);
      const double value = (word & 0x100) != 0 ? -size : size;
      if (distance < ziggurat::edge(strip)) return value;
      if (strip == 0) return tail((distance & 0x100) != 0);
      const double span = ziggurat::height(strip - 1) - ziggurat::height(strip);
      if (span * random() + ziggurat::height(strip) < std::exp(-0.5 * value * value)) return value;
    }
  }

  /// `Generator.normal(mean, deviation)`.
  PENSTOCK_HOST_DEVICE double normal(double mean, double deviation) noexcept {
    return mean + deviation * standard_normal();
  }

  /// `Generator.standard_normal(out.size())`.
  PENSTOCK_HOST_DEVICE void standard_normal(std::span<double> out) noexcept {
    for (double& value : out) value = standard_normal();
  }

  [[nodiscard]] constexpr Words words() const noexcept { return words_; }

  /// The generator that `words()` came from; the caller checks that they `are_words`.
  static constexpr Rng from_words(const Words& words) noexcept { return Rng(words); }

  /// Returns whether the words are a valid generator: the increment of a PCG64 is odd, and a half has 32 bits.
  static constexpr bool are_words(const Words& words) noexcept {
    return (words[3] & 1u) != 0 && (words[4] == 0 || (words[4] >> 32) == 1);
  }

 private:
  explicit constexpr Rng(const Words& words) noexcept : words_(words) {}

  static constexpr Wide join(std::uint64_t high, std::uint64_t low) noexcept {
    return (static_cast<Wide>(high) << 64) | low;
  }
  static constexpr std::uint64_t high(Wide value) noexcept { return static_cast<std::uint64_t>(value >> 64); }
  static constexpr std::uint64_t low(Wide value) noexcept { return static_cast<std::uint64_t>(value); }

  constexpr void set_state(Wide state) noexcept {
    words_[0] = high(state);
    words_[1] = low(state);
  }
  constexpr Wide advance() noexcept {
    const Wide state = join(words_[0], words_[1]) * join(2549297995355413924ULL, 4865540595714422341ULL) +
                       join(words_[2], words_[3]);
    set_state(state);
    return state;
  }

  /// 0 to `max_value` (at max_value 2**64 - 2) inclusive by Lemire's multiplication, in 32 bits where they suffice.
  constexpr std::uint64_t up_to(std::uint64_t max_value) noexcept {
    if (max_value == 0) return 0;
    if (max_value == 0xffffffffULL) return next_half();
    if (max_value < 0xffffffffULL) {
      const auto count = static_cast<std::uint32_t>(max_value) + 1;
      std::uint64_t product = std::uint64_t{next_half()} * count;
      if (static_cast<std::uint32_t>(product) < count) {
        const std::uint32_t least = (0xffffffffu - static_cast<std::uint32_t>(max_value)) % count;
        while (static_cast<std::uint32_t>(product) < least) product = std::uint64_t{next_half()} * count;
      }
      return product >> 32;
    }
    const std::uint64_t count = max_value + 1;
    Wide product = static_cast<Wide>(next()) * count;
    if (low(product) < count) {
      const std::uint64_t least = (~std::uint64_t{0} - max_value) % count;
      while (low(product) < least) product = static_cast<Wide>(next()) * count;
    }
    return high(product);
  }

  /// Beyond the last strip, by Marsaglia's method.
  PENSTOCK_HOST_DEVICE double tail(bool negative) noexcept {
    for (;;) {
      const double beyond = -ziggurat::inverse_tail_start * std::log1p(-random());
      const double other = -std::log1p(-random());
      if (other + other > beyond * beyond) {
        const double size = ziggurat::tail_start + beyond;
        return negative ? -size : size;
      }
    }
  }

  // 64-bit words instead of 128-bit integers, which would be aligned, and so padded, to 48 bytes.
  Words words_{};
};
static_assert(sizeof(Rng) == 40 && alignof(Rng) == 8);

}  // namespace penstock
