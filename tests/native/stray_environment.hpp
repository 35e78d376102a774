// An environment with a fault that only a sanitizer sees. It is compiled alone: sanitized code takes long to compile.
#include <penstock/library.hpp>

using namespace penstock;

/// Reads what lies behind an array.
struct Stray {
  static constexpr Info info{.id = "Stray-v0", .max_episode_steps = 40};
  static constexpr Discrete<2> action{};
  static constexpr auto observation = Box<1>::symmetric({1.0});
  struct Config {
    PENSTOCK_FIELDS(Config)
  } config;
  struct State {
    double x;
    std::int64_t place;
    std::array<double, 3> lane;
    PENSTOCK_FIELDS(State, x, place, lane)
  } state;
  void reset(Rng& rng) { state = {rng.random(), 0, {1.0, 2.0, 3.0}}; }
  Step step(std::int64_t) {
    const std::vector<double> copy(state.lane.begin(), state.lane.end());
    const double* lane = copy.data();
    state.place = (state.place + 1) % 4;
    return {.reward = lane[state.place] > 0.0 ? 1.0 : 0.0};
  }
  void observe(std::span<float, 1> out) const { out[0] = float(state.x); }
};

PENSTOCK_LIBRARY(Stray)
