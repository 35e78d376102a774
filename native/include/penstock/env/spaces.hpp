/// Action and observation spaces as compile-time types: Discrete, MultiDiscrete and Box.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

/// An action out of {0, ..., Count - 1}. `step` takes it as std::int64_t; the framework has checked the range.
template <std::int64_t Count>
struct Discrete {
  static_assert(Count > 0, "penstock: Discrete: an action is one of at least 1 choice");
  using Value = std::int64_t;
  using Argument = std::int64_t;
  static constexpr std::int64_t count = Count;
  static constexpr std::size_t size = 1;
};

/// One action out of {0, ..., Count - 1} for each of `Agents` agents. `step` takes it as
/// std::span<const std::int64_t, Agents>; the framework has checked the range.
template <std::int64_t Count, std::size_t Agents>
struct MultiDiscrete {
  static_assert(Count > 0 && Agents > 0, "penstock: MultiDiscrete: at least 1 agent has at least 1 choice");
  using Value = std::int64_t;
  static constexpr std::int64_t count = Count;
  static constexpr std::size_t size = Agents;
  using Argument = std::span<const std::int64_t, size>;
};

/// Bounded values of a fixed shape; float32 if nothing else is said, as `Box<4>`. As an action (float32), `step` takes
/// it as std::span<const float, size>; the framework has checked that it is finite, not that it is within the bounds:
/// as in Gymnasium, clipping is the environment's.
template <class T, std::size_t... Dimensions>
struct BoxOf {
  static_assert(std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::uint8_t>,
                "penstock: BoxOf: values are float, double or std::uint8_t");
  static_assert(sizeof...(Dimensions) > 0 && (... && (Dimensions > 0)),
                "penstock: Box: a shape has at least one axis, each of at least 1 value");
  using Value = T;
  static constexpr std::size_t size = (... * Dimensions);
  using Argument = std::span<const T, size>;
  static constexpr std::array<std::int64_t, sizeof...(Dimensions)> shape{static_cast<std::int64_t>(Dimensions)...};

  std::array<T, size> low{};
  std::array<T, size> high{};

  /// Bounds -high and high, rounded to the type as NumPy does.
  static constexpr BoxOf symmetric(const std::array<double, size>& high) {
    BoxOf box;
    for (std::size_t i = 0; i < size; ++i) {
      box.high[i] = static_cast<T>(high[i]);
      box.low[i] = -box.high[i];
    }
    return box;
  }

  /// Bounds of each value, rounded likewise.
  static constexpr BoxOf between(const std::array<double, size>& low, const std::array<double, size>& high) {
    BoxOf box;
    for (std::size_t i = 0; i < size; ++i) box.low[i] = static_cast<T>(low[i]), box.high[i] = static_cast<T>(high[i]);
    return box;
  }

  /// The same two bounds everywhere.
  static constexpr BoxOf filled(T low, T high) {
    BoxOf box;
    box.low.fill(low);
    box.high.fill(high);
    return box;
  }
};
template <std::size_t... Dimensions>
using Box = BoxOf<float, Dimensions...>;

template <class T>
inline constexpr bool is_discrete = false;
template <std::int64_t Count>
inline constexpr bool is_discrete<Discrete<Count>> = true;
template <class T>
inline constexpr bool is_multi_discrete = false;
template <std::int64_t Count, std::size_t Agents>
inline constexpr bool is_multi_discrete<MultiDiscrete<Count, Agents>> = true;

}  // namespace penstock
