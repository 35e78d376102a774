/// MountainCarContinuous-v0, equal to gymnasium.envs.classic_control.continuous_mountain_car step for step.
///
/// Gymnasium's state is float64 after a reset and float32 after every step, and the force is float32 unless it was
/// clipped, when it is a Python float and float64. NumPy's promotion makes of that two ways to compute each sum.
#pragma once

#include <cmath>

#include "penstock/env.hpp"
#include "penstock/random/numpy_math.hpp"

namespace penstock {

struct MountainCarContinuous {
  static constexpr Info info{
      .id = "MountainCarContinuous-v0", .max_episode_steps = 999, .reward_threshold = 90.0};
  static constexpr double min_position = -1.2, max_position = 0.6, max_speed = 0.07, goal_position = 0.45;
  static constexpr auto action = Box<1>::symmetric({1.0});
  static constexpr auto observation = Box<2>::between({min_position, -max_speed}, {max_position, max_speed});

  struct Config {
    double goal_velocity = 0.0, power = 0.0015;
    PENSTOCK_FIELDS(Config, goal_velocity, power)
  } config;

  struct State {
    double position, velocity;
    bool was_reset;  ///< the numbers are float64, not float32 that are kept in a double
    PENSTOCK_FIELDS(State, position, velocity, was_reset)
  } state;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) { state = {rng.uniform(-0.6, -0.4), 0.0, true}; }

  PENSTOCK_HOST_DEVICE Step step(std::span<const float, 1> wanted_force) {
    const float force = wanted_force[0];
    const bool at_goal = state.was_reset ? move<double>(force) : move<float>(force);
    return {.reward = (at_goal ? 100.0 : 0.0) - power(double{force}, 2.0) * 0.1, .terminated = at_goal};
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<float, 2> out) const {
    out[0] = float(state.position), out[1] = float(state.velocity);
  }

 private:
  /// Moves a car whose state is of type T; whether it is at the goal.
  template <class T>
  PENSTOCK_HOST_DEVICE bool move(float force) {
    T position = static_cast<T>(state.position), velocity = static_cast<T>(state.velocity);
    const double pull = 0.0025 * std::cos(double{T{3} * position});
    if (force > 1.0f) velocity += static_cast<T>(config.power - pull);
    else if (force < -1.0f) velocity += static_cast<T>(-config.power - pull);
    else velocity += force * static_cast<float>(config.power) - static_cast<float>(pull);
    // A velocity that was clipped is a Python float in Gymnasium, and compared with the goal's as such.
    bool fast_enough = velocity >= static_cast<T>(config.goal_velocity);
    if (velocity > static_cast<T>(max_speed)) {
      velocity = static_cast<T>(max_speed);
      fast_enough = max_speed >= config.goal_velocity;
    } else if (velocity < static_cast<T>(-max_speed)) {
      velocity = static_cast<T>(-max_speed);
      fast_enough = -max_speed >= config.goal_velocity;
    }
    position += velocity;
    if (position > static_cast<T>(max_position)) position = static_cast<T>(max_position);
    if (position < static_cast<T>(min_position)) position = static_cast<T>(min_position);
    if (position == static_cast<T>(min_position) && velocity < 0) velocity = T{0};
    state = {double{static_cast<float>(position)}, double{static_cast<float>(velocity)}, false};
    return position >= static_cast<T>(goal_position) && fast_enough;
  }
};

}  // namespace penstock
