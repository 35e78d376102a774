/// Counter-based noise: a value depends on its coordinates alone, never on what was drawn before it.
///
/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The counter holds
/// (k / 4, t, round, environment), the key is made of (seed, purpose), so within one seed and purpose no two values
/// share a counter: how environments are split into batches cannot change what any of them gets.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>

namespace penstock {

enum class Noise { uniform, normal, gumbel };

class Philox {
 public:
  using Block = std::array<std::uint32_t, 4>;

  /// A stream for one (seed, purpose). The three words go through Philox itself, so near seeds give unrelated keys.
  Philox(std::uint64_t seed, std::uint32_t purpose) noexcept {
    const Block mixed = rounds({low(seed), high(seed), purpose, 0x70656e73u}, {0x746f636bu, 0x6e6f6973u});
    key_ = {mixed[0], mixed[1]};
  }

  [[nodiscard]] std::array<std::uint32_t, 2> key() const noexcept { return key_; }

  [[nodiscard]] Block operator()(const Block& counter) const noexcept { return rounds(counter, key_); }

  /// The bare function, for comparison with the published known answers.
  static constexpr Block rounds(Block counter, std::array<std::uint32_t, 2> key) noexcept {
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t left = std::uint64_t{0xd2511f53u} * counter[0];
      const std::uint64_t right = std::uint64_t{0xcd9e8d57u} * counter[2];
      counter = {high(right) ^ counter[1] ^ key[0], low(right), high(left) ^ counter[3] ^ key[1], low(left)};
      key[0] += 0x9e3779b9u;
      key[1] += 0xbb67ae85u;
    }
    return counter;
  }

 private:
  static constexpr std::uint32_t low(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value); }
  static constexpr std::uint32_t high(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value >> 32); }

  std::array<std::uint32_t, 2> key_{};
};

/// The first `count` of the four values that four words give (a normal pair is always whole). Uniform is in the open
/// interval (0, 1) and is exact in float32 (23 bits and a half step), so its logarithm is finite. Normal is Box-Muller
/// on word pairs, |z| < 6.8. Gumbel is -log(-log(u)).
template <Noise kind>
inline std::array<float, 4> transform(const Philox::Block& words, std::size_t count) noexcept {
  const auto open_unit = [](std::uint32_t word) { return (word + 0.5) * 0x1p-32; };
  std::array<float, 4> values{};
  if constexpr (kind == Noise::uniform) {
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(((words[i] >> 9) + 0.5) * 0x1p-23);
  } else if constexpr (kind == Noise::gumbel) {
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(-std::log(-std::log(open_unit(words[i]))));
  } else {
    for (std::size_t i = 0; i < count; i += 2) {
      const double radius = std::sqrt(-2.0 * std::log(open_unit(words[i])));
      const double angle = 2.0 * std::numbers::pi * open_unit(words[i + 1]);
      values[i] = static_cast<float>(radius * std::cos(angle));
      values[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
  return values;
}

/// Fills `out`, laid out [steps, environments, width], where value (t, b, k) is a pure function of the stream,
/// environments[b], round, t and k. Sizes are the caller's to check: out.size() == steps * environments.size() * width.
template <Noise kind>
void fill(const Philox& stream, std::span<const std::uint32_t> environments, std::uint32_t round, std::size_t steps,
          std::size_t width, std::span<float> out) noexcept {
  float* row = out.data();
  for (std::size_t t = 0; t < steps; ++t) {
    for (const std::uint32_t environment : environments) {
      for (std::size_t k = 0; k < width; k += 4) {
        const std::size_t count = std::min<std::size_t>(4, width - k);
        const auto column = static_cast<std::uint32_t>(k / 4), step = static_cast<std::uint32_t>(t);
        const auto values = transform<kind>(stream({column, step, round, environment}), count);
        for (std::size_t lane = 0; lane < count; ++lane) row[k + lane] = values[lane];
      }
      row += width;
    }
  }
}

}  // namespace penstock
