// Environments with the faults that `penstock check-env` is there to find; they compile.
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include <penstock/library.hpp>
#include <penstock/simd/group.hpp>

using namespace penstock;

struct Common {
  static constexpr Discrete<2> action{};
  static constexpr auto observation = Box<2>::symmetric({1.0, 1.0});
  struct Config {
    PENSTOCK_FIELDS(Config)
  } config;
  struct State {
    double x;
    PENSTOCK_FIELDS(State, x)
  } state;
  void reset(Rng& rng) { state.x = rng.random(); }
  void observe(std::span<float, 2> out) const { out[0] = out[1] = float(state.x); }
};

/// Depends on a member outside its state, which outlives a reset.
struct Forgetful : Common {
  static constexpr Info info{.id = "Forgetful-v0", .max_episode_steps = 20};
  double speed = 0.01;
  Step step(std::int64_t push) {
    speed += push ? 0.001 : -0.001;
    state.x = state.x + speed > 1.0 ? 0.0 : state.x + speed;
    state.x = state.x < 0.0 ? 0.0 : state.x;
    return {.reward = speed};
  }
};

/// Takes no notice of its seed.
struct Stubborn : Common {
  static constexpr Info info{.id = "Stubborn-v0"};
  void reset(Rng& rng) { state.x = rng.random() * 0.0; }
  Step step(std::int64_t) { return {}; }
};

/// Leaves its bounds, and then the numbers.
struct Wild : Common {
  static constexpr Info info{.id = "Wild-v0", .max_episode_steps = 40};
  Step step(std::int64_t) {
    state.x *= 2.0;
    return {.reward = state.x > 100.0 ? std::numeric_limits<double>::quiet_NaN() : 0.0};
  }
};

/// Is rewarded otherwise where it is stepped with others.
struct Grouped : Common {
  static constexpr Info info{.id = "Grouped-v0", .max_episode_steps = 20};
  Step step(std::int64_t) { return {.reward = state.x}; }
  static bool can_step_group(const Config&) { return true; }
  static bool step_group(const Group<Grouped>& group, const std::int64_t*, std::array<Step, group_size>& steps) {
    for (std::size_t i = 0; i < group_size; ++i) steps[i] = {.reward = 2.0 * group[i]->state.x};
    return true;
  }
};

/// Forbids everything from its second step on.
struct Forbidding : Common {
  static constexpr Info info{.id = "Forbidding-v0", .max_episode_steps = 20};
  struct State {
    double x, steps;
    PENSTOCK_FIELDS(State, x, steps)
  } state;
  void reset(Rng& rng) { state = {rng.random(), 0.0}; }
  Step step(std::int64_t) {
    state.steps += 1.0;
    return {};
  }
  void observe(std::span<float, 2> out) const { out[0] = out[1] = float(state.x); }
  void action_mask(std::span<bool, 2> out) const { out[0] = out[1] = state.steps < 2.0; }
};

/// Is never made.
struct Refusing : Common {
  static constexpr Info info{.id = "Refusing-v0", .max_episode_steps = 20};
  Refusing() { throw std::runtime_error("no licence"); }
  Step step(std::int64_t) { return {}; }
};

/// Ends the process in its first step, as a crash does.
struct Straying : Common {
  static constexpr Info info{.id = "Straying-v0", .max_episode_steps = 20};
  Step step(std::int64_t push) {
    static_cast<volatile double*>(nullptr)[push + 100] = 1.0;
    return {};
  }
};

/// Ends the process in its first step, as if all were done.
struct Leaving : Common {
  static constexpr Info info{.id = "Leaving-v0", .max_episode_steps = 20};
  Step step(std::int64_t) { std::_Exit(0); }
};

PENSTOCK_LIBRARY(Straying, Leaving, Forgetful, Stubborn, Wild, Grouped, Forbidding, Refusing)
