/// Pendulum-v1, equal to gymnasium.envs.classic_control.pendulum step for step. The torque stays float32 where NumPy's
/// promotion keeps it float32.
#pragma once

#include <cmath>
#include <numbers>

#include "penstock/env.hpp"
#include "penstock/random/numpy_math.hpp"

namespace penstock {

struct Pendulum {
  static constexpr Info info{.id = "Pendulum-v1", .max_episode_steps = 200};
  static constexpr double pi = std::numbers::pi, max_speed = 8.0, dt = 0.05;
  static constexpr float max_torque = 2.0f;
  static constexpr auto action = Box<1>::symmetric({max_torque});
  static constexpr auto observation = Box<3>::symmetric({1.0, 1.0, max_speed});

  struct Config {
    double g = 10.0, m = 1.0, l = 1.0;
    PENSTOCK_FIELDS(Config, g, m, l)
    [[nodiscard]] const char* problem() const { return m > 0 && l > 0 ? nullptr : "m and l must be > 0"; }
  } config;

  struct State {
    double angle, speed;
    PENSTOCK_FIELDS(State, angle, speed)
  } state;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) {
    state.angle = rng.uniform(-pi, pi);
    state.speed = rng.uniform(-1.0, 1.0);
  }

  PENSTOCK_HOST_DEVICE Step step(std::span<const float, 1> wanted_torque) {
    const auto [g, m, l] = config;
    auto& [angle, speed] = state;
    const float torque = clip(wanted_torque[0], -max_torque, max_torque);
    const double normal_angle = modulo(angle + pi, 2 * pi) - pi;
    const double cost = power(normal_angle, 2.0) + 0.1 * power(speed, 2.0) + 0.001f * power(torque, 2.0f);
    const double acceleration = 3 * g / (2 * l) * std::sin(angle) + float(3.0 / (m * power(l, 2.0))) * torque;
    speed = clip(speed + acceleration * dt, -max_speed, max_speed);
    angle = angle + speed * dt;
    return {.reward = -cost};
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<float, 3> out) const {
    out[0] = float(std::cos(state.angle)), out[1] = float(std::sin(state.angle)), out[2] = float(state.speed);
  }
};

}  // namespace penstock
