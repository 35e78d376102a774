/// The contract of env.hpp, point by point, each with a sentence that states the requirement. The compiler prints the
/// sentence instead of a page about templates; the word before its colon is the member that it is about.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "penstock/env/description.hpp"
#include "penstock/env/variants.hpp"

namespace penstock {

template <class T>
inline constexpr bool is_box = false;
template <class T, std::size_t... Dimensions>
inline constexpr bool is_box<BoxOf<T, Dimensions...>> = true;

template <class E>
concept HasInfo = requires {
  { &E::info } -> std::convertible_to<const Info*>;
  typename std::bool_constant<(E::info.max_episode_steps == 0)>;  // it is constexpr
};
template <class E>
concept HasAction = requires {
  requires is_discrete<std::remove_cvref_t<decltype(*&E::action)>> ||
      is_multi_discrete<std::remove_cvref_t<decltype(*&E::action)>> ||
      std::same_as<typename std::remove_cvref_t<decltype(*&E::action)>::Value, float>;
};
template <class E>
concept HasObservation = requires { requires is_box<std::remove_cvref_t<decltype(*&E::observation)>>; };

template <class E>
concept HasConfig = requires(E e) {
  { e.config } -> std::same_as<typename E::Config&>;
  requires HasFields<typename E::Config>;
};
template <class E>
concept Resets = requires(E e, Rng& rng) {
  { e.reset(rng) } -> std::same_as<void>;
};
template <class E>
concept Observes = requires(const E e, std::span<ObservationValue<E>, observation_size<E>> out) {
  { e.observe(out) } -> std::same_as<void>;
};

#ifdef PENSTOCK_STORED_HEADER
/// A run's header that compiled before some of these sentences were there must compile for ever.
inline constexpr bool was_stored = true;
#else
inline constexpr bool was_stored = false;
#endif

/// Those below have a member of that name: one that is declared almost right would be ignored.
template <class E>
concept NamesActionMask = requires { &E::action_mask; };
template <class E>
concept NamesDraw = requires { &E::draw; } || requires { E::frame; };
template <class C>
concept NamesProblem = requires { requires !std::is_member_object_pointer_v<decltype(&C::problem)>; };
template <class E>
concept NamesStateProblem = requires { requires !std::is_member_object_pointer_v<decltype(&E::state_problem)>; };
template <class E>
concept NamesReport = requires(E e) {
  typename E::Report;
  e.report;
};
template <class E>
concept NamesStepLimit = requires {  // a number of that name is the environment's own
  { E::step_limit } -> std::convertible_to<std::string_view>;
};

/// Stands for a value of any member's type, to count how many an aggregate takes.
struct AnyMember {
  template <class T>
  operator T() const;
};

template <class S, std::size_t... Index>
consteval bool takes_members(std::index_sequence<Index...>) {
  return requires { S{(static_cast<void>(Index), AnyMember{})...}; };
}

/// Returns whether PENSTOCK_FIELDS lists as many members as the struct has; true where that cannot be known.
template <HasFields S>
consteval bool lists_all_members() {
  constexpr std::size_t listed = std::tuple_size_v<decltype(S::fields())>;
  if constexpr (std::is_aggregate_v<S>) return !takes_members<S>(std::make_index_sequence<listed + 1>{});
  else return true;
}

/// Returns whether PENSTOCK_FIELDS lists no member twice.
template <HasFields S>
consteval bool lists_each_once() {
  const auto names = std::apply(
      [](const auto&... field) { return std::array<std::string_view, sizeof...(field)>{field.name...}; }, S::fields());
  for (std::size_t i = 0; i < names.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (names[i] == names[j]) return false;
  return true;
}

template <HasFields S>
consteval bool holds_arrays() {
  bool holds = false;
  for_each_field<S>(
      [&](const auto& field) { holds = holds || is_field_array<typename std::remove_cvref_t<decltype(field)>::Type>; });
  return holds;
}

/// Returns whether the field that `step_limit` names is one of the configuration, of whole numbers.
template <class E>
consteval bool names_its_limit() {
  bool found = false;
  for_each_field<typename E::Config>([&](const auto& field) {
    using T = typename std::remove_cvref_t<decltype(field)>::Type;
    found = found || (std::same_as<T, std::int64_t> && std::string_view(field.name) == E::step_limit);
  });
  return found;
}

/// Bounds that are in order, and not both 0: which is what is left of those that symmetric() was not given.
template <class B>
consteval bool has_bounds(const B& box) {
  if constexpr (B::size <= 4096)  // compilers limit how long constant evaluation may take
    for (std::size_t i = 0; i < B::size; ++i)
      if (!(box.low[i] <= box.high[i]) || (box.low[i] == 0 && box.high[i] == 0)) return false;
  return true;
}

/// With `agents` an action of each of them, and no MultiDiscrete without.
template <class E>
consteval bool acts_as_its_agents() {
  using A = ActionSpace<E>;
  if constexpr (is_multi_discrete<A>) return A::size == agents_of<E>;
  else if constexpr (agents_of<E> == 0) return true;
  else if constexpr (is_discrete<A>) return false;
  else return A::shape[0] == std::int64_t(agents_of<E>);
}

/// Returns whether no two of a library's environments have one name; the second would take the first one's place. Those
/// with variants have the names of these.
template <class... E>
consteval bool have_names_of_their_own() {
  if constexpr ((HasInfo<E> && ...)) {
    const std::array<std::string_view, sizeof...(E)> names{HasVariants<E> || E::info.id == nullptr ? "" : E::info.id...};
    for (std::size_t i = 0; i < names.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (!names[i].empty() && names[i] == names[j]) return false;
  }
  return true;
}

/// Compiles if E fulfils the contract; otherwise the error says what is missing.
template <class E>
consteval void check_environment() {
  static_assert(HasInfo<E>, "penstock: info: an environment says, in public, who it is: "
                            "static constexpr penstock::Info info{.id = \"Mine-v0\", .max_episode_steps = 200};");
  if constexpr (HasInfo<E>) {
    static_assert(E::info.id != nullptr && *E::info.id != 0, "penstock: info: the name is missing: .id = \"Mine-v0\",");
    static_assert(E::info.max_episode_steps >= 0, "penstock: info: max_episode_steps is the number of steps after which "
                                                  "an episode is truncated, at least 1, or 0 for no limit");
  }
  static_assert(HasAction<E>,
                "penstock: action: an environment says which actions it takes: static constexpr penstock::Discrete<2> "
                "action{}; or MultiDiscrete<2, agents>, or a float32 Box<1>");
  static_assert(HasObservation<E>,
                "penstock: observation: an environment says what it shows: static constexpr auto observation = "
                "penstock::Box<4>::symmetric({1, 1, 2, 2}); or BoxOf<std::uint8_t, 84, 84>::filled(0, 255)");
  static_assert(HasConfig<E>,
                "penstock: config: an environment has a plain struct with defaults and names: "
                "struct Config { double gravity = 9.8; PENSTOCK_FIELDS(Config, gravity) } config; or, with "
                "nothing to configure, struct Config { PENSTOCK_FIELDS(Config) } config;");
  static_assert(PlainState<E> || SavesItself<E>,
                "penstock: state: an environment has a plain struct with names: struct State { double x; "
                "PENSTOCK_FIELDS(State, x) } state; or it has state_size(), save(out) and load(in)");
  if constexpr (HasConfig<E>) {
    static_assert(lists_all_members<typename E::Config>(),
                  "penstock: Config: PENSTOCK_FIELDS must list every member of Config; what is left out cannot be "
                  "configured, and is not saved");
    static_assert(was_stored || lists_each_once<typename E::Config>(),
                  "penstock: Config: PENSTOCK_FIELDS lists a member twice");
    static_assert(!holds_arrays<typename E::Config>(),
                  "penstock: Config: a configuration holds single values, double, bool or std::int64_t; arrays belong "
                  "into State");
    if constexpr (NamesProblem<typename E::Config>)
      static_assert(was_stored || ChecksItself<typename E::Config>,
                    "penstock: Config: problem must be `const char* problem() const`: nullptr, or what is wrong");
    if constexpr (NamesStepLimit<E>)
      static_assert(was_stored || LimitsItself<E>, "penstock: step_limit: must be a text: static constexpr const char* "
                                                   "step_limit = \"max_steps\";");
    if constexpr (LimitsItself<E>)
      static_assert(names_its_limit<E>(), "penstock: step_limit: must be the name of a field of Config that is a "
                                          "std::int64_t, after whose steps `step` truncates");
  }
  if constexpr (PlainState<E>) {
    static_assert(lists_all_members<typename E::State>(),
                  "penstock: State: PENSTOCK_FIELDS must list every member of State; what is left out is not saved");
    static_assert(was_stored || lists_each_once<typename E::State>(),
                  "penstock: State: PENSTOCK_FIELDS lists a member twice");
    if constexpr (NamesStateProblem<E>)
      static_assert(was_stored || ChecksState<E>,
                    "penstock: state_problem: must be `const char* state_problem() const`: nullptr, or what is wrong "
                    "with the state");
  }
  if constexpr (NamesReport<E>) {
    static_assert(was_stored || Reports<E>,
                  "penstock: Report: what an environment reports is a struct with names, and how many of them a reset "
                  "shows: struct Report { double speed; PENSTOCK_FIELDS(Report, speed) } report; and static constexpr "
                  "std::size_t reset_reports = 0;");
    if constexpr (Reports<E>)
      static_assert(was_stored || E::reset_reports <= std::tuple_size_v<decltype(E::Report::fields())>,
                    "penstock: Report: a reset shows at most as many of them as there are: reset_reports is larger");
  }
  static_assert(std::movable<E> && (SharesSomething<E> || std::default_initializable<E>),
                "penstock: constructor: the framework makes an environment without arguments (or from `const Shared&`) "
                "and moves it into the pool; what depends on the seed or the configuration belongs into reset");
  static_assert(Resets<E>, "penstock: reset: an environment starts an episode with void reset(penstock::Rng& rng), which "
                           "sets every member of the state");
  if constexpr (HasAction<E>)
    static_assert(acts_as_its_agents<E>(),
                  "penstock: action: several agents, static constexpr std::size_t agents = 2;, take MultiDiscrete<n, "
                  "agents> or Box<agents, size>; without `agents` it is Discrete<n> or Box<size>");
  if constexpr (HasAction<E>)
    static_assert(Steps<E>, "penstock: step: must be `penstock::Step step(action)`, where action is std::int64_t for "
                            "Discrete<n>, std::span<const float, size> for Box and std::span<const std::int64_t, "
                            "agents> for MultiDiscrete; or `step(action, penstock::Rng& rng)` where a step is random; with "
                            "`agents` it gives back TeamStep<agents>");
  if constexpr (NamesActionMask<E> && HasAction<E>)
    static_assert(MasksActions<E>,
                  "penstock: action_mask: must be `void action_mask(std::span<bool, n> out) const`, in an environment "
                  "whose action is Discrete<n>, or std::span<bool, n * agents> with MultiDiscrete<n, agents>: it says of "
                  "each choice, of one agent after the other, whether it is allowed now");
  if constexpr (NamesDraw<E>) {
    static_assert(Draws<E>, "penstock: draw: an environment that draws itself has the picture's size and a function: "
                            "static constexpr penstock::FrameSize frame{.height = 64, .width = 96}; and "
                            "void draw(penstock::Canvas& canvas) const");
    if constexpr (Draws<E>)
      static_assert(E::frame.height > 0 && E::frame.width > 0 && E::frame.height <= 4096 && E::frame.width <= 4096,
                    "penstock: frame: a picture has 1 to 4096 pixels in height and in width");
  }
  if constexpr (HasObservation<E>) {
    static_assert(Observes<E>,
                  "penstock: observe: must be `void observe(std::span<T, size> out) const`, with the type and the size "
                  "of `observation`: for Box<4>, std::span<float, 4>; for BoxOf<double, 2, 3>, std::span<double, 6>");
    static_assert(has_bounds(E::observation),
                  "penstock: observation: a value has bounds that are not in order, or both 0: symmetric({...}) needs one "
                  "bound for each value");
    if constexpr (agents_of<E> > 0)
      static_assert(std::remove_cvref_t<decltype(E::observation)>::shape[0] == std::int64_t(agents_of<E>),
                    "penstock: observation: with `agents` its first axis is theirs: Box<agents, 4> for 4 values of each");
  }
}

}  // namespace penstock
