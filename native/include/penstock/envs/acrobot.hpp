/// Acrobot-v1, equal to gymnasium.envs.classic_control.acrobot step for step: the order of operations is Gymnasium's.
///
/// Gymnasium's class attributes are configuration here, by the same names in small letters; `nips` is
/// Gymnasium's `book_or_nips = "nips"`.
#pragma once

#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "penstock/env.hpp"
#include "penstock/random/numpy_math.hpp"

namespace penstock {

struct Acrobot {
  static constexpr Info info{.id = "Acrobot-v1", .max_episode_steps = 500, .reward_threshold = -100.0};
  static constexpr double pi = std::numbers::pi, gravity = 9.8, max_vel_1 = 4 * pi, max_vel_2 = 9 * pi;
  static constexpr Discrete<3> action{};
  static constexpr auto observation = Box<6>::symmetric({1.0, 1.0, 1.0, 1.0, max_vel_1, max_vel_2});

  struct Config {
    double link_length_1 = 1.0, link_mass_1 = 1.0, link_mass_2 = 1.0, link_com_pos_1 = 0.5, link_com_pos_2 = 0.5;
    double link_moi = 1.0, torque_noise_max = 0.0, dt = 0.2;
    bool nips = false;
    PENSTOCK_FIELDS(Config, link_length_1, link_mass_1, link_mass_2, link_com_pos_1, link_com_pos_2, link_moi,
                    torque_noise_max, dt, nips)
    [[nodiscard]] const char* problem() const {
      return link_length_1 > 0 && link_mass_1 > 0 && link_mass_2 > 0 && link_com_pos_1 > 0 && link_com_pos_2 > 0 &&
                     link_moi > 0 && dt > 0
          ? nullptr
          : "lengths, masses, centres of mass, link_moi and dt must be > 0";
    }
  } config;

  struct State {
    double angle_1, angle_2, velocity_1, velocity_2;
    bool was_reset;  ///< Gymnasium's state is float32 until the first step; it matters to NumPy's sine and cosine
    PENSTOCK_FIELDS(State, angle_1, angle_2, velocity_1, velocity_2, was_reset)
  } state;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) {
    for (double* value : {&state.angle_1, &state.angle_2, &state.velocity_1, &state.velocity_2})
      *value = double{static_cast<float>(rng.uniform(-0.1, 0.1))};
    state.was_reset = true;
  }

  PENSTOCK_HOST_DEVICE Step step(std::int64_t choice, Rng& rng) {
    double torque = static_cast<double>(choice - 1);
    if (config.torque_noise_max > 0) torque += rng.uniform(-config.torque_noise_max, config.torque_noise_max);
    const auto [angle_1, angle_2, velocity_1, velocity_2] =
        integrate({state.angle_1, state.angle_2, state.velocity_1, state.velocity_2}, torque);
    state = {wrap(angle_1), wrap(angle_2), clip(velocity_1, -max_vel_1, max_vel_1),
             clip(velocity_2, -max_vel_2, max_vel_2), false};
    const bool swung_up = -std::cos(state.angle_1) - std::cos(state.angle_2 + state.angle_1) > 1.0;
    return {.reward = swung_up ? 0.0 : -1.0, .terminated = swung_up};
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<float, 6> out) const {
    const auto [angle_1, angle_2, velocity_1, velocity_2, was_reset] = state;
    if (was_reset) {
      out[0] = small_cosine(float(angle_1)), out[1] = small_sine(float(angle_1));
      out[2] = small_cosine(float(angle_2)), out[3] = small_sine(float(angle_2));
    } else {
      out[0] = float(std::cos(angle_1)), out[1] = float(std::sin(angle_1));
      out[2] = float(std::cos(angle_2)), out[3] = float(std::sin(angle_2));
    }
    out[4] = float(velocity_1), out[5] = float(velocity_2);
  }

 private:
  using Motion = std::array<double, 4>;  ///< both angles and both velocities, or their derivatives

  struct Squares {
    double length_1, com_pos_1, com_pos_2;
  };

  /// One step of the classical Runge-Kutta method of fourth order.
  [[nodiscard]] PENSTOCK_HOST_DEVICE Motion integrate(const Motion& start, double torque) const {
    const double dt = config.dt, half = dt / 2.0, sixth = dt / 6.0;
    const Squares squares{power(config.link_length_1, 2.0), power(config.link_com_pos_1, 2.0),
                          power(config.link_com_pos_2, 2.0)};
    const auto ahead = [&](double time, const Motion& slope) {
      Motion there;
      for (std::size_t i = 0; i < 4; ++i) there[i] = start[i] + time * slope[i];
      return derivative(there, torque, squares);
    };
    const Motion k1 = derivative(start, torque, squares);
    const Motion k2 = ahead(half, k1), k3 = ahead(half, k2), k4 = ahead(dt, k3);
    Motion end;
    for (std::size_t i = 0; i < 4; ++i) end[i] = start[i] + sixth * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
    return end;
  }

  [[nodiscard]] PENSTOCK_HOST_DEVICE Motion derivative(const Motion& motion, double torque,
                                                       const Squares& squares) const {
    const auto [angle_1, angle_2, velocity_1, velocity_2] = motion;
    const double m1 = config.link_mass_1, m2 = config.link_mass_2, l1 = config.link_length_1;
    const double lc1 = config.link_com_pos_1, lc2 = config.link_com_pos_2, moi = config.link_moi;
    const double cosine_2 = std::cos(angle_2), sine_2 = std::sin(angle_2);
    const double d1 = m1 * squares.com_pos_1 +
                      m2 * (squares.length_1 + squares.com_pos_2 + 2 * l1 * lc2 * cosine_2) + moi + moi;
    const double d2 = m2 * (squares.com_pos_2 + l1 * lc2 * cosine_2) + moi;
    const double phi2 = m2 * lc2 * gravity * std::cos(angle_1 + angle_2 - pi / 2.0);
    const double phi1 = -m2 * l1 * lc2 * power(velocity_2, 2.0) * sine_2 -
                        2 * m2 * l1 * lc2 * velocity_2 * velocity_1 * sine_2 +
                        (m1 * lc1 + m2 * l1) * gravity * std::cos(angle_1 - pi / 2) + phi2;
    const double reaction = torque + d2 / d1 * phi1;
    const double inertia = m2 * squares.com_pos_2 + moi - power(d2, 2.0) / d1;
    const double acceleration_2 =
        (config.nips ? reaction - phi2 : reaction - m2 * l1 * lc2 * power(velocity_1, 2.0) * sine_2 - phi2) / inertia;
    const double acceleration_1 = -(d2 * acceleration_2 + phi1) / d1;
    return {velocity_1, velocity_2, acceleration_1, acceleration_2};
  }

  /// The angle between -pi and pi, by whole turns. Gymnasium never returns from an angle that a turn does not change.
  PENSTOCK_HOST_DEVICE static double wrap(double angle) {
    if (!(std::abs(angle) < 1e6))
      PENSTOCK_FAIL("the integration diverged, an angle is " + std::to_string(angle) +
                    ": choose a shorter dt or less torque noise");
    while (angle > pi) angle -= 2 * pi;
    while (angle < -pi) angle += 2 * pi;
    return angle;
  }
};

}  // namespace penstock
