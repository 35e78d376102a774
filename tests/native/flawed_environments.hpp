// Environments with the faults that `penstock check-env` is there to find; they compile.
#include <limits>

#include <penstock/library.hpp>

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

PENSTOCK_LIBRARY(Forgetful, Stubborn, Wild)
