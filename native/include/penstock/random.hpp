/// NumPy's seeding and generator in C++: `np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))`.
///
/// Guarantees the same bits as NumPy for SeedSequence, PCG64 and `uniform`, which is what makes an environment equal to
/// Gymnasium's seed for seed. It is not a general random library: only what environments draw is here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock {

/// NumPy's SeedSequence for a non-negative integer below 2**64, without spawning.
class SeedSequence {
 public:
  explicit constexpr SeedSequence(std::uint64_t seed) noexcept {
    // NumPy splits an integer into its 32-bit words, lowest first, without leading zeros; a missing word mixes as 0,
    // so two words are enough whatever the seed.
    const std::array entropy{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
    std::uint32_t hash = 0x43b0d7e5u;
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash_mix(i < entropy.size() ? entropy[i] : 0u, hash);
    for (std::size_t source = 0; source < pool_.size(); ++source)
      for (std::size_t target = 0; target < pool_.size(); ++target)
        if (source != target) pool_[target] = mix(pool_[target], hash_mix(pool_[source], hash));
  }

  /// `generate_state(Count, np.uint64)`.
  template <std::size_t Count>
  [[nodiscard]] constexpr std::array<std::uint64_t, Count> generate() const noexcept {
    std::array<std::uint64_t, Count> words{};
    std::uint32_t hash = 0x8b51f9ddu;
    for (std::size_t i = 0; i < 2 * Count; ++i) {
      std::uint32_t value = pool_[i % pool_.size()] ^ hash;
      hash *= 0x58f38dedu;
      value *= hash;
      value ^= value >> 16;
      words[i / 2] |= static_cast<std::uint64_t>(value) << (32 * (i % 2));
    }
    return words;
  }

 private:
  static constexpr std::uint32_t hash_mix(std::uint32_t value, std::uint32_t& hash) noexcept {
    value ^= hash;
    hash *= 0x931e8875u;
    value *= hash;
    return value ^ (value >> 16);
  }
  static constexpr std::uint32_t mix(std::uint32_t x, std::uint32_t y) noexcept {
    const std::uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ (result >> 16);
  }

  std::array<std::uint32_t, 4> pool_{};
};

/// NumPy's PCG64 (XSL-RR 128/64) with the distributions that environments use. 32 bytes, trivially copyable.
class Rng {
  __extension__ using Wide = unsigned __int128;

 public:
  using Words = std::array<std::uint64_t, 4>;  ///< state high, state low, increment high, increment low

  constexpr Rng() noexcept : Rng(0) {}
  explicit constexpr Rng(std::uint64_t seed) noexcept {
    const auto words = SeedSequence(seed).generate<4>();
    increment_ = (join(words[2], words[3]) << 1) | 1u;
    advance();
    state_ += join(words[0], words[1]);
    advance();
  }

  constexpr std::uint64_t next() noexcept {
    advance();
    const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
    const auto turn = static_cast<unsigned>(state_ >> 122);
    return (folded >> turn) | (folded << ((64u - turn) & 63u));
  }

  /// `Generator.random()`: 53 bits in [0, 1).
  constexpr double random() noexcept { return static_cast<double>(next() >> 11) * (1.0 / 9007199254740992.0); }

  /// `Generator.uniform(low, high)`.
  constexpr double uniform(double low, double high) noexcept { return low + (high - low) * random(); }

  [[nodiscard]] constexpr Words words() const noexcept {
    return {static_cast<std::uint64_t>(state_ >> 64), static_cast<std::uint64_t>(state_),
            static_cast<std::uint64_t>(increment_ >> 64), static_cast<std::uint64_t>(increment_)};
  }

  /// The generator that `words()` came from. The increment of a PCG64 is odd; the caller checks it.
  static constexpr Rng from_words(const Words& words) noexcept {
    Rng rng;
    rng.state_ = join(words[0], words[1]);
    rng.increment_ = join(words[2], words[3]);
    return rng;
  }

 private:
  static constexpr Wide join(std::uint64_t high, std::uint64_t low) noexcept {
    return (static_cast<Wide>(high) << 64) | low;
  }
  constexpr void advance() noexcept {
    state_ = state_ * join(2549297995355413924ULL, 4865540595714422341ULL) + increment_;
  }

  Wide state_ = 0;
  Wide increment_ = 1;
};

}  // namespace penstock
