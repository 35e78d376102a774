/// MountainCar-v0, equal to gymnasium.envs.classic_control.mountain_car step for step: the order of operations is
/// Gymnasium's.
#pragma once

#include <cmath>

#include "penstock/env.hpp"
#include "penstock/random/numpy_math.hpp"

namespace penstock {

struct MountainCar {
  static constexpr Info info{.id = "MountainCar-v0", .max_episode_steps = 200, .reward_threshold = -110.0};
  static constexpr double min_position = -1.2, max_position = 0.6, max_speed = 0.07, goal_position = 0.5;
  static constexpr Discrete<3> action{};
  static constexpr auto observation = Box<2>::between({min_position, -max_speed}, {max_position, max_speed});

  struct Config {
    double goal_velocity = 0.0, force = 0.001, gravity = 0.0025;
    PENSTOCK_FIELDS(Config, goal_velocity, force, gravity)
  } config;

  struct State {
    double position, velocity;
    PENSTOCK_FIELDS(State, position, velocity)
  } state;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) { state = {rng.uniform(-0.6, -0.4), 0.0}; }

  PENSTOCK_HOST_DEVICE Step step(std::int64_t push) {
    const auto [goal_velocity, force, gravity] = config;
    auto& [position, velocity] = state;
    velocity += static_cast<double>(push - 1) * force + std::cos(3 * position) * -gravity;
    velocity = clip(velocity, -max_speed, max_speed);
    position = clip(position + velocity, min_position, max_position);
    if (position == min_position && velocity < 0) velocity = 0.0;
    return {.reward = -1.0, .terminated = position >= goal_position && velocity >= goal_velocity};
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<float, 2> out) const {
    out[0] = float(state.position), out[1] = float(state.velocity);
  }
};

}  // namespace penstock
