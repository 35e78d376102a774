/// The description of an environment that Python sees: spaces, configuration fields, reports and facts.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "penstock/env/environment.hpp"
#include "penstock/env/members.hpp"

namespace penstock {

struct FieldInfo {
  std::string name;
  FieldKind kind;
  double preset;  ///< the default, exact for every kind that is used (integers up to 2**53)
};

enum class ValueType { float32, float64, uint8 };

template <class T>
inline constexpr ValueType value_type = std::same_as<T, float> ? ValueType::float32
    : std::same_as<T, double>                                 ? ValueType::float64
                                                              : ValueType::uint8;

/// Numbers about an environment that are the same in every episode; what they mean is the environment's to say.
struct Fact {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<double> values;  ///< in row-major order
};

/// A member of an environment's report; `width` 0 means one number.
struct ReportInfo {
  std::string name;
  std::size_t width = 0;
  bool is_mask = false;  ///< an array of bool

  [[nodiscard]] std::size_t size() const { return width > 0 ? width : 1; }
};

struct Description {
  std::string id;
  std::int64_t max_episode_steps = 0;
  std::optional<double> reward_threshold;
  ValueType observation_type = ValueType::float32;
  std::vector<std::int64_t> observation_shape;            ///< with a mask {row_size}
  bool masks_actions = false;
  std::vector<std::int64_t> behind_mask;                  ///< shape of what `observe` writes
  std::vector<double> observation_low, observation_high;  ///< exact for every type
  std::int64_t action_count = 0;                          ///< 0 for a Box
  std::vector<std::int64_t> action_shape;                 ///< {} for Discrete, {agents} for MultiDiscrete
  std::vector<float> action_low, action_high;
  std::size_t agents = 0;  ///< 0 without an agent axis
  std::vector<FieldInfo> config;
  std::string step_limit;  ///< field of the configuration after whose steps the environment truncates; empty: none
  std::vector<ReportInfo> reports;
  std::size_t reset_reports = 0;

  /// Numbers of a report.
  [[nodiscard]] std::size_t report_size() const {
    std::size_t size = 0;
    for (const ReportInfo& report : reports) size += report.size();
    return size;
  }
  std::vector<Fact> facts;
  std::int64_t frame_height = 0, frame_width = 0;  ///< pixels; 0 if the environment does not draw itself
};

/// An environment whose sizes are those of what it shares, not its type's: `Shared::describe` sets choices,
/// observation, mask and facts of the description, and `row_size` how many values `observe` then writes, those of the
/// mask included. Its constants `action` and `observation` give types, and the most choices that there can be; a choice
/// that is one too many for what it shares is for `step` to refuse.
template <class E>
concept SizesItself = SharesSomething<E> &&
    requires(const E fixed, const typename E::Shared shared, Description& d, std::span<ObservationValue<E>> out) {
      { shared.describe(d) } -> std::same_as<void>;
      { fixed.row_size() } -> std::same_as<std::size_t>;
      { fixed.observe(out) } -> std::same_as<void>;
    };

/// An environment whose observation, one row of values with the same bounds, is as long as its configuration says. A
/// pool's environments then need the same length, for as long as there is the pool.
template <class E>
concept SizedByConfig = requires(const typename E::Config config) {
  { E::observed_values(config) } -> std::same_as<std::size_t>;
};

/// Makes the observation one row of so many values.
inline void resize_observation(Description& d, std::size_t values) {
  d.observation_shape = d.behind_mask = {static_cast<std::int64_t>(values)};
  d.observation_low.resize(values, d.observation_low.front());
  d.observation_high.resize(values, d.observation_high.front());
}

/// Adds the fields of a configuration, with the values of `presets` as their defaults.
inline void add_fields(std::vector<FieldInfo>& config, std::span<const Member> members, const void* presets) {
  for (const Member& member : members)
    config.push_back({member.name, member.kind, number_at(member.in(presets), member.kind)});
}

template <Environment E>
[[gnu::cold]] Description describe() {
  const auto& seen = E::observation;
  Description d;
  d.id = E::info.id;
  d.max_episode_steps = E::info.max_episode_steps;
  d.reward_threshold = E::info.reward_threshold;
  d.observation_type = value_type<ObservationValue<E>>;
  d.masks_actions = MasksActions<E>;
  d.behind_mask.assign(seen.shape.begin(), seen.shape.end());
  d.observation_shape = d.masks_actions ? std::vector{static_cast<std::int64_t>(row_size<E>)} : d.behind_mask;
  d.observation_low.assign(mask_size<E>, 0.0);
  d.observation_high.assign(mask_size<E>, 1.0);
  d.observation_low.insert(d.observation_low.end(), seen.low.begin(), seen.low.end());
  d.observation_high.insert(d.observation_high.end(), seen.high.begin(), seen.high.end());
  if constexpr (is_discrete<ActionSpace<E>>) {
    d.action_count = ActionSpace<E>::count;
  } else if constexpr (is_multi_discrete<ActionSpace<E>>) {
    d.action_count = ActionSpace<E>::count;
    d.action_shape = {static_cast<std::int64_t>(ActionSpace<E>::size)};
  } else {
    static_assert(std::same_as<typename ActionSpace<E>::Value, float>, "a Box action is float32");
    d.action_shape.assign(E::action.shape.begin(), E::action.shape.end());
    d.action_low.assign(E::action.low.begin(), E::action.low.end());
    d.action_high.assign(E::action.high.begin(), E::action.high.end());
  }
  d.agents = agents_of<E>;
  if constexpr (LimitsItself<E>) d.step_limit = E::step_limit;
  if constexpr (Draws<E>) d.frame_height = E::frame.height, d.frame_width = E::frame.width;
  const typename E::Config defaults{};
  add_fields(d.config, member_table<typename E::Config>, &defaults);
  if constexpr (Reports<E>) {
    for_each_field<typename E::Report>([&](const auto& field) {
      using T = typename std::remove_cvref_t<decltype(field)>::Type;
      ReportInfo& report = d.reports.emplace_back(ReportInfo{.name = field.name});
      if constexpr (is_field_array<T>) {
        report.width = std::tuple_size_v<T>;
        report.is_mask = std::same_as<typename T::value_type, bool>;
        static_assert(!std::same_as<typename T::value_type, std::int64_t>, "arrays of reports are of double or bool");
      } else {
        static_assert(std::same_as<T, double>, "reports are doubles, and arrays of double or bool");
      }
    });
    d.reset_reports = E::reset_reports;
  }
  return d;
}

}  // namespace penstock
