/// The contract of an environment: the concepts that one header fulfils.
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

#include "penstock/env/canvas.hpp"
#include "penstock/env/fields.hpp"
#include "penstock/env/spaces.hpp"
#include "penstock/host_device.hpp"
#include "penstock/random/numpy_random.hpp"

namespace penstock {

/// The result of a step. `truncated` is for the environment's own limits; the framework enforces the time limit.
struct Step {
  double reward = 0.0;
  bool terminated = false;
  bool truncated = false;
};

/// The result of a step with one reward per agent. The episode's return adds up their mean.
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

/// The number of agents, each with its own reward; 0 without an agent axis.
template <class E>
inline constexpr std::size_t agents_of = [] {
  if constexpr (requires { E::agents; }) return std::size_t{E::agents};
  else return std::size_t{0};
}();
template <class E>
inline constexpr std::size_t reward_size = agents_of<E> > 0 ? agents_of<E> : 1;

/// The type that `step` of E returns: a Step, or a TeamStep where `E::agents` says how many agents there are.
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

/// An environment that reports numbers in addition to the observation: Gymnasium's infos. `report` is a struct whose
/// members, a double or a std::array of double or bool, the environment sets in reset and step; after a reset only the
/// first `reset_reports` members are shown. An array of bool is one of int8 there, as Gymnasium's masks are.
template <class E>
concept Reports = HasFields<typename E::Report> && requires(const E fixed) {
  { fixed.report } -> std::same_as<const typename E::Report&>;
  { E::reset_reports } -> std::convertible_to<std::size_t>;
};

/// An environment that truncates its episodes itself, after as many steps as a field of its configuration says:
/// `static constexpr const char* step_limit = "max_steps"`. Then that is the pool's limit too, for those who ask for it.
template <class E>
concept LimitsItself = requires {
  { E::step_limit } -> std::convertible_to<const char*>;
};

/// An environment that draws itself: `frame` is the picture's size, and `draw` paints the state of the moment on it.
template <class E>
concept Draws = requires(const E fixed, Canvas& canvas) {
  { E::frame } -> std::convertible_to<FrameSize>;
  { fixed.draw(canvas) } -> std::same_as<void>;
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

/// An environment may say what is wrong with its state: `const char* state_problem() const`, nullptr when it is fine. A
/// state that is restored or set is refused by it, where it could read or write beyond its arrays.
template <class E>
concept ChecksState = PlainState<E> && requires(const E fixed) {
  { fixed.state_problem() } -> std::convertible_to<const char*>;
};

/// A configuration may say what is wrong with it: `const char* problem() const`, nullptr when it is fine.
template <class C>
concept ChecksItself = requires(const C config) {
  { config.problem() } -> std::convertible_to<const char*>;
};

}  // namespace penstock
