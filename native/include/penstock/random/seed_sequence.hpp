/// NumPy's SeedSequence: spreads a seed of 64 bits over the state of a generator, bit for bit as NumPy does.
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

}  // namespace penstock
