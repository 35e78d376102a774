/// What an environment is: the concept that one header fulfils, and the description that Python sees.
///
/// The author writes constants, configuration, state, reset, step and observe. The framework owns the time limit, the
/// automatic reset, final observations, episode statistics, seeding, validation of actions and configuration, spaces,
/// save and restore, and exceptions. envs/cartpole.hpp is the example to start from.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "penstock/fields.hpp"
#include "penstock/random.hpp"

namespace penstock {

/// What a step gives back. `truncated` is for limits of the environment's own; the time limit is the framework's.
struct Step {
  double reward = 0.0;
  bool terminated = false;
  bool truncated = false;
};

/// Identity and limits. `max_episode_steps` is at least 1; 0 means that episodes have no time limit.
struct Info {
  const char* id;
  std::int64_t max_episode_steps = 0;
  std::optional<double> reward_threshold = std::nullopt;
};

/// An action out of {0, ..., Count - 1}. `step` takes it as std::int64_t; the framework has checked the range.
template <std::int64_t Count>
struct Discrete {
  static_assert(Count > 0);
  using Value = std::int64_t;
  using Argument = std::int64_t;
  static constexpr std::int64_t count = Count;
  static constexpr std::size_t size = 1;
};

/// Bounded float32 values of a fixed shape. As an action, `step` takes it as std::span<const float, size>; the
/// framework has checked that it is finite, not that it lies within the bounds: as in Gymnasium, clipping is the
/// environment's.
template <std::size_t... Dimensions>
struct Box {
  static_assert(sizeof...(Dimensions) > 0 && (... && (Dimensions > 0)));
  using Value = float;
  static constexpr std::size_t size = (... * Dimensions);
  using Argument = std::span<const float, size>;
  static constexpr std::array<std::int64_t, sizeof...(Dimensions)> shape{static_cast<std::int64_t>(Dimensions)...};

  std::array<float, size> low{};
  std::array<float, size> high{};

  /// Bounds -high and high, rounded to float32 as NumPy does.
  static constexpr Box symmetric(const std::array<double, size>& high) {
    Box box;
    for (std::size_t i = 0; i < size; ++i) {
      box.high[i] = static_cast<float>(high[i]);
      box.low[i] = -box.high[i];
    }
    return box;
  }
};

template <class T>
inline constexpr bool is_discrete = false;
template <std::int64_t Count>
inline constexpr bool is_discrete<Discrete<Count>> = true;

template <class E>
using ActionSpace = std::remove_cvref_t<decltype(E::action)>;
template <class E>
using ObservationSpace = std::remove_cvref_t<decltype(E::observation)>;
template <class E>
inline constexpr std::size_t observation_size = ObservationSpace<E>::size;

/// The whole contract of an environment. reset must set every member of `state`; step and reset may throw.
template <class E>
concept Environment = HasFields<typename E::Config> && HasFields<typename E::State> && std::copyable<E> &&
    requires(E e, const E fixed, Rng rng, typename ActionSpace<E>::Argument action,
             std::span<float, observation_size<E>> out) {
      { E::info } -> std::convertible_to<Info>;
      { e.config } -> std::same_as<typename E::Config&>;
      { e.state } -> std::same_as<typename E::State&>;
      { e.reset(rng) } -> std::same_as<void>;
      { e.step(action) } -> std::same_as<Step>;
      { fixed.observe(out) } -> std::same_as<void>;
    };

/// A configuration may say what is wrong with it: `const char* problem() const`, nullptr when it is fine.
template <class C>
concept ChecksItself = requires(const C config) {
  { config.problem() } -> std::convertible_to<const char*>;
};

enum class FieldKind { real, boolean, integer };

struct FieldInfo {
  std::string name;
  FieldKind kind;
  double preset;  ///< the default, exact for every kind that is used (integers up to 2**53)
};

struct Description {
  std::string id;
  std::int64_t max_episode_steps;
  std::optional<double> reward_threshold;
  std::vector<std::int64_t> observation_shape;
  std::vector<float> observation_low, observation_high;
  std::int64_t action_count;  ///< 0 for a Box
  std::vector<std::int64_t> action_shape;
  std::vector<float> action_low, action_high;
  std::vector<FieldInfo> config;
};

template <FieldType T>
inline constexpr FieldKind kind_of = std::same_as<T, double> ? FieldKind::real
    : std::same_as<T, bool>                                  ? FieldKind::boolean
                                                             : FieldKind::integer;

template <Environment E>
Description describe() {
  const auto& seen = E::observation;
  Description d{E::info.id, E::info.max_episode_steps, E::info.reward_threshold, {}, {}, {}, 0, {}, {}, {}, {}};
  d.observation_shape.assign(seen.shape.begin(), seen.shape.end());
  d.observation_low.assign(seen.low.begin(), seen.low.end());
  d.observation_high.assign(seen.high.begin(), seen.high.end());
  if constexpr (is_discrete<ActionSpace<E>>) {
    d.action_count = ActionSpace<E>::count;
  } else {
    d.action_shape.assign(E::action.shape.begin(), E::action.shape.end());
    d.action_low.assign(E::action.low.begin(), E::action.low.end());
    d.action_high.assign(E::action.high.begin(), E::action.high.end());
  }
  const typename E::Config defaults{};
  for_each_field<typename E::Config>([&](const auto& field) {
    using T = typename std::remove_cvref_t<decltype(field)>::Type;
    d.config.push_back({field.name, kind_of<T>, static_cast<double>(defaults.*field.member)});
  });
  return d;
}

}  // namespace penstock
