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

/// The same with a reward for each agent. The episode's return adds up their mean.
template <std::size_t Agents>
struct TeamStep {
  std::array<double, Agents> rewards{};
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

/// One action out of {0, ..., Count - 1} for each of `Agents` agents. `step` takes it as
/// std::span<const std::int64_t, Agents>; the framework has checked the range.
template <std::int64_t Count, std::size_t Agents>
struct MultiDiscrete {
  static_assert(Count > 0 && Agents > 0);
  using Value = std::int64_t;
  static constexpr std::int64_t count = Count;
  static constexpr std::size_t size = Agents;
  using Argument = std::span<const std::int64_t, size>;
};

/// Bounded values of a fixed shape; float32 if nothing else is said, as `Box<4>`. As an action (float32), `step` takes
/// it as std::span<const float, size>; the framework has checked that it is finite, not that it lies within the bounds:
/// as in Gymnasium, clipping is the environment's.
template <class T, std::size_t... Dimensions>
struct BoxOf {
  static_assert(std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::uint8_t>);
  static_assert(sizeof...(Dimensions) > 0 && (... && (Dimensions > 0)));
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

template <class E>
using ActionSpace = std::remove_cvref_t<decltype(E::action)>;
template <class E>
using ObservationSpace = std::remove_cvref_t<decltype(E::observation)>;
template <class E>
using ObservationValue = typename ObservationSpace<E>::Value;
template <class E>
inline constexpr std::size_t observation_size = ObservationSpace<E>::size;

/// An environment that forbids some of its choices at times: action_mask says of each whether it is allowed now, and is
/// asked whenever the environment is observed: of each agent's choices, one agent after the other. What a forbidden
/// choice does is for step to say. After an episode's end nothing needs to be allowed.
template <class E>
concept MasksActions = (is_discrete<ActionSpace<E>> || is_multi_discrete<ActionSpace<E>>) &&
    requires(const E fixed, std::span<bool, ActionSpace<E>::count * ActionSpace<E>::size> out) {
      { fixed.action_mask(out) } -> std::same_as<void>;
    };

template <class E>
inline constexpr std::size_t mask_size = [] {
  if constexpr (MasksActions<E>) return static_cast<std::size_t>(ActionSpace<E>::count) * ActionSpace<E>::size;
  else return std::size_t{0};
}();

/// Numbers of an observation as the pool gives it: the mask (0 or 1 for each choice), then what `observe` writes. It is
/// what Gymnasium's FlattenObservation makes of a dictionary with `action_mask` and `observation`.
template <class E>
inline constexpr std::size_t row_size = mask_size<E> + observation_size<E>;

/// How many agents an environment has, each with a reward of its own; 0 without an agent axis.
template <class E>
inline constexpr std::size_t agents_of = [] {
  if constexpr (requires { E::agents; }) return std::size_t{E::agents};
  else return std::size_t{0};
}();
template <class E>
inline constexpr std::size_t reward_size = agents_of<E> > 0 ? agents_of<E> : 1;

/// What `step` of E gives back: a Step, or a TeamStep where `E::agents` says how many agents there are.
template <class E>
struct StepFor {
  using Type = Step;
};
template <class E>
  requires(agents_of<E> > 0)
struct StepFor<E> {
  using Type = TeamStep<agents_of<E>>;
};
template <class E>
using StepOf = typename StepFor<E>::Type;

/// An environment whose state is a plain struct with named members: the framework saves, restores and clones it.
template <class E>
concept PlainState = HasFields<typename E::State> && requires(E e) {
  { e.state } -> std::same_as<typename E::State&>;
};

/// An environment whose state is elsewhere (a simulator's, say): it saves and loads a row of doubles itself. `load` may
/// throw, and what it loaded must be everything that the next step depends on, bit for bit.
template <class E>
concept SavesItself = requires(E e, const E fixed, std::span<double> out, std::span<const double> in) {
  { fixed.state_size() } -> std::convertible_to<std::size_t>;
  { fixed.save(out) } -> std::same_as<void>;
  { e.load(in) } -> std::same_as<void>;
};

/// An environment with something that all of a pool share (a model, a table): made once, before the environments, from
/// the folder of resources that the library was loaded with. The environment is constructed from a reference to it.
template <class E>
concept SharesSomething = requires { typename E::Shared; } &&
    std::constructible_from<typename E::Shared, const std::string&> &&
    std::constructible_from<E, const typename E::Shared&>;

/// An environment that reports numbers beside the observation: Gymnasium's infos. `report` is a struct of doubles whose
/// members the environment sets in reset and step; after a reset only the first `reset_reports` of them are shown.
template <class E>
concept Reports = HasFields<typename E::Report> && requires(const E fixed) {
  { fixed.report } -> std::same_as<const typename E::Report&>;
  { E::reset_reports } -> std::convertible_to<std::size_t>;
};

/// An environment whose steps are random: step is given the generator too, the one that reset draws from.
template <class E>
concept StepsAtRandom = requires(E e, Rng rng, typename ActionSpace<E>::Argument action) {
  { e.step(action, rng) } -> std::same_as<StepOf<E>>;
};
template <class E>
concept Steps = StepsAtRandom<E> || requires(E e, typename ActionSpace<E>::Argument action) {
  { e.step(action) } -> std::same_as<StepOf<E>>;
};

/// The whole contract of an environment. reset must set every member of the state; step and reset may throw.
template <class E>
concept Environment = HasFields<typename E::Config> && std::movable<E> && (PlainState<E> || SavesItself<E>) &&
    (SharesSomething<E> || std::default_initializable<E>) && Steps<E> &&
    requires(E e, const E fixed, Rng rng, std::span<ObservationValue<E>, observation_size<E>> out) {
      { E::info } -> std::convertible_to<Info>;
      { e.config } -> std::same_as<typename E::Config&>;
      { e.reset(rng) } -> std::same_as<void>;
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
  std::vector<std::string> reports;
  std::size_t reset_reports = 0;
  std::vector<Fact> facts;
};

/// An environment whose sizes are those of what it shares, not its type's: `Shared::describe` says choices, observation,
/// mask and facts of the description, and `row_size` how many values `observe` then writes, those of the mask included.
/// Its constants `action` and `observation` give types, and the most choices that there can be; a choice that is one too
/// many for what it shares is for `step` to refuse.
template <class E>
concept SizesItself = SharesSomething<E> &&
    requires(const E fixed, const typename E::Shared shared, Description& d, std::span<ObservationValue<E>> out) {
      { shared.describe(d) } -> std::same_as<void>;
      { fixed.row_size() } -> std::same_as<std::size_t>;
      { fixed.observe(out) } -> std::same_as<void>;
    };

template <FieldType T>
inline constexpr FieldKind kind_of = std::same_as<T, double> ? FieldKind::real
    : std::same_as<T, bool>                                  ? FieldKind::boolean
                                                             : FieldKind::integer;

template <Environment E>
Description describe() {
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
  const typename E::Config defaults{};
  for_each_field<typename E::Config>([&](const auto& field) {
    using T = typename std::remove_cvref_t<decltype(field)>::Type;
    d.config.push_back({field.name, kind_of<T>, static_cast<double>(defaults.*field.member)});
  });
  if constexpr (Reports<E>) {
    for_each_field<typename E::Report>([&](const auto& field) {
      static_assert(std::same_as<typename std::remove_cvref_t<decltype(field)>::Type, double>, "reports are doubles");
      d.reports.emplace_back(field.name);
    });
    d.reset_reports = E::reset_reports;
  }
  return d;
}

}  // namespace penstock
