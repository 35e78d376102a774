// This environment waits in each step and computes next to nothing: many of them simulate a cluster's actors.
#include <chrono>
#include <thread>

#include <penstock/library.hpp>

struct Waiting {
  static constexpr penstock::Info info{.id = "Waiting-v0", .max_episode_steps = 1000};
  static constexpr auto action = penstock::Discrete<2>{};
  static constexpr auto observation = penstock::Box<4>::symmetric({1.0, 1.0, 1.0, 1.0});

  struct Config {
    double wait_milliseconds = 0.0;
    PENSTOCK_FIELDS(Config, wait_milliseconds)
  } config;

  struct State {
    double place;
    PENSTOCK_FIELDS(State, place)
  } state;

  void reset(penstock::Rng& rng) { state = {rng.uniform(-0.5, 0.5)}; }

  penstock::Step step(std::int64_t choice) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(config.wait_milliseconds));
    state.place = std::clamp(state.place + (choice ? 0.01 : -0.01), -1.0, 1.0);
    return {.reward = -std::abs(state.place), .terminated = false};
  }

  void observe(std::span<float, 4> out) const {
    for (float& value : out) value = float(state.place);
  }
};

PENSTOCK_LIBRARY(Waiting)
