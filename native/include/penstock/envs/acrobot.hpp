/// Acrobot-v1, equal to gymnasium.envs.classic_control.acrobot step for step: the order of operations is Gymnasium's.
///
/// Gymnasium's class attributes are configuration here, by the same names in small letters; `nips` is
/// Gymnasium's `book_or_nips = "nips"`.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "penstock/env.hpp"
#include "penstock/simd/group.hpp"
#include "penstock/simd/powers.hpp"
#include "penstock/simd/sine_cosine.hpp"
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

  /// The sines and cosines of two angles, if a step in a group has computed them.
  struct View {
    double angle_1 = std::numeric_limits<double>::quiet_NaN(), angle_2 = 0;
    float cosine_1 = 0, sine_1 = 0, cosine_2 = 0, sine_2 = 0;
  } view;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) {
    for (double* value : {&state.angle_1, &state.angle_2, &state.velocity_1, &state.velocity_2})
      *value = double{static_cast<float>(rng.uniform(-0.1, 0.1))};
    state.was_reset = true;
  }

  PENSTOCK_HOST_DEVICE Step step(std::int64_t choice, Rng& rng) {
    double torque = static_cast<double>(choice - 1);
    if (config.torque_noise_max > 0) torque += rng.uniform(-config.torque_noise_max, config.torque_noise_max);
    const Motion end = integrate({state.angle_1, state.angle_2, state.velocity_1, state.velocity_2}, torque);
    arrive(end);
    return result(std::cos(state.angle_1), std::cos(state.angle_2 + state.angle_1));
  }

  static bool can_step_group(const Config& config) { return !(config.torque_noise_max > 0); }

  template <class E>
  [[gnu::always_inline]] static bool step_group(const Group<E>& group, const std::int64_t* choices,
                                                std::array<Step, group_size>& steps) {
    const Config config = group[0]->config;
    std::array<GroupValues, 4> start, end;
    GroupValues torque, sums, cosine_1, sine_1, cosine_2, sine_2, cosine_sum;
    for (std::size_t i = 0; i < group_size; ++i) {
      const State& from = group[i]->state;
      start[0][i] = from.angle_1, start[1][i] = from.angle_2;
      start[2][i] = from.velocity_1, start[3][i] = from.velocity_2;
      torque[i] = choice_value(choices[i]) - 1;
    }
    integrate_group(config, start, torque, end);
    for (std::size_t i = 0; i < group_size; ++i)
      if (!can_wrap(end[0][i]) || !can_wrap(end[1][i])) return false;
    for (std::size_t i = 0; i < group_size; ++i) {
      group[i]->arrive({end[0][i], end[1][i], end[2][i], end[3][i]});
      const State& there = group[i]->state;
      end[0][i] = there.angle_1, end[1][i] = there.angle_2, sums[i] = there.angle_2 + there.angle_1;
    }
    sines_and_cosines(end[0], sine_1, cosine_1);
    sines_and_cosines(end[1], sine_2, cosine_2);
    cosines(sums, cosine_sum);
    for (std::size_t i = 0; i < group_size; ++i) {
      group[i]->view = {end[0][i],          end[1][i],          float(cosine_1[i]),
                        float(sine_1[i]), float(cosine_2[i]), float(sine_2[i])};
      steps[i] = result(cosine_1[i], cosine_sum[i]);
    }
    return true;
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<float, 6> out) const {
    const auto [angle_1, angle_2, velocity_1, velocity_2, was_reset] = state;
    if (was_reset) {
      out[0] = small_cosine(float(angle_1)), out[1] = small_sine(float(angle_1));
      out[2] = small_cosine(float(angle_2)), out[3] = small_sine(float(angle_2));
    } else if (view.angle_1 == angle_1 && view.angle_2 == angle_2) {
      out[0] = view.cosine_1, out[1] = view.sine_1, out[2] = view.cosine_2, out[3] = view.sine_2;
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
    PENSTOCK_HOST_DEVICE explicit Squares(const Config& config)
        : length_1(power(config.link_length_1, 2.0)), com_pos_1(power(config.link_com_pos_1, 2.0)),
          com_pos_2(power(config.link_com_pos_2, 2.0)) {}
  };

  /// The numbers that a motion's derivative is computed from, apart from itself.
  struct Terms {
    double cosine_2, sine_2, cosine_sum, cosine_1;  ///< the last two of angles from a quarter of a turn on
    double inertia_2, square_of_inertia_2, square_of_velocity_1, square_of_velocity_2;
  };

  PENSTOCK_HOST_DEVICE void arrive(const Motion& end) {
    const auto [angle_1, angle_2, velocity_1, velocity_2] = end;
    state = {wrap(angle_1), wrap(angle_2), clip(velocity_1, -max_vel_1, max_vel_1),
             clip(velocity_2, -max_vel_2, max_vel_2), false};
  }

  PENSTOCK_HOST_DEVICE static Step result(double cosine_1, double cosine_sum) {
    const bool swung_up = -cosine_1 - cosine_sum > 1.0;
    return {.reward = swung_up ? 0.0 : -1.0, .terminated = swung_up};
  }

  /// One step of the classical Runge-Kutta method of fourth order.
  [[nodiscard]] PENSTOCK_HOST_DEVICE Motion integrate(const Motion& start, double torque) const {
    const double dt = config.dt, half = dt / 2.0, sixth = dt / 6.0;
    const Squares squares(config);
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

  [[gnu::always_inline]] static void integrate_group(const Config& config, const std::array<GroupValues, 4>& start,
                                                     const GroupValues& torque, std::array<GroupValues, 4>& end) {
    const double dt = config.dt, half = dt / 2.0, sixth = dt / 6.0;
    const Squares squares(config);
    const std::array<double, 4> times{0.0, half, half, dt};
    std::array<std::array<GroupValues, 4>, 4> slopes;
    for (std::size_t stage = 0; stage < 4; ++stage) {
      std::array<GroupValues, 4> there = start;
      if (stage > 0)
        for (std::size_t part = 0; part < 4; ++part)
          for (std::size_t i = 0; i < group_size; ++i)
            there[part][i] = start[part][i] + times[stage] * slopes[stage - 1][part][i];
      derivative_group(config, squares, there, torque, slopes[stage]);
    }
    for (std::size_t part = 0; part < 4; ++part)
      for (std::size_t i = 0; i < group_size; ++i)
        end[part][i] = start[part][i] + sixth * (slopes[0][part][i] + 2 * slopes[1][part][i] + 2 * slopes[2][part][i] +
                                                 slopes[3][part][i]);
  }

  [[gnu::always_inline]] static void derivative_group(const Config& config, const Squares& squares,
                                                      const std::array<GroupValues, 4>& motion,
                                                      const GroupValues& torque, std::array<GroupValues, 4>& slope) {
    const auto& [angle_1, angle_2, velocity_1, velocity_2] = motion;
    GroupValues cosine_2, sine_2, shifted, cosine_sum, cosine_1, inertia, square_of_inertia, square_1, square_2;
    sines_and_cosines(angle_2, sine_2, cosine_2);
    for (std::size_t i = 0; i < group_size; ++i) shifted[i] = angle_1[i] + angle_2[i] - pi / 2.0;
    cosines(shifted, cosine_sum);
    for (std::size_t i = 0; i < group_size; ++i) shifted[i] = angle_1[i] - pi / 2;
    cosines(shifted, cosine_1);
    for (std::size_t i = 0; i < group_size; ++i) inertia[i] = inertia_2(config, squares, cosine_2[i]);
    squares_of(inertia, square_of_inertia);
    squares_of(velocity_1, square_1);
    squares_of(velocity_2, square_2);
    for (std::size_t i = 0; i < group_size; ++i) {
      const Motion one = slope_of(config, squares, velocity_1[i], velocity_2[i], torque[i],
                                  {cosine_2[i], sine_2[i], cosine_sum[i], cosine_1[i], inertia[i], square_of_inertia[i],
                                   square_1[i], square_2[i]});
      slope[0][i] = one[0], slope[1][i] = one[1], slope[2][i] = one[2], slope[3][i] = one[3];
    }
  }

  [[nodiscard]] PENSTOCK_HOST_DEVICE Motion derivative(const Motion& motion, double torque,
                                                       const Squares& squares) const {
    const auto [angle_1, angle_2, velocity_1, velocity_2] = motion;
    const double cosine_2 = std::cos(angle_2), inertia = inertia_2(config, squares, cosine_2);
    return slope_of(config, squares, velocity_1, velocity_2, torque,
                    {cosine_2, std::sin(angle_2), std::cos(angle_1 + angle_2 - pi / 2.0), std::cos(angle_1 - pi / 2),
                     inertia, power(inertia, 2.0), power(velocity_1, 2.0), power(velocity_2, 2.0)});
  }

  [[gnu::always_inline]] PENSTOCK_HOST_DEVICE static double inertia_2(const Config& config, const Squares& squares,
                                                                      double cosine_2) {
    return config.link_mass_2 * (squares.com_pos_2 + config.link_length_1 * config.link_com_pos_2 * cosine_2) +
           config.link_moi;
  }

  [[gnu::always_inline]] PENSTOCK_HOST_DEVICE static Motion slope_of(const Config& config, const Squares& squares,
                                                                     double velocity_1, double velocity_2,
                                                                     double torque, const Terms& terms) {
    const double m1 = config.link_mass_1, m2 = config.link_mass_2, l1 = config.link_length_1;
    const double lc1 = config.link_com_pos_1, lc2 = config.link_com_pos_2, moi = config.link_moi;
    const double sine_2 = terms.sine_2, d2 = terms.inertia_2;
    const double d1 = m1 * squares.com_pos_1 +
                      m2 * (squares.length_1 + squares.com_pos_2 + 2 * l1 * lc2 * terms.cosine_2) + moi + moi;
    const double phi2 = m2 * lc2 * gravity * terms.cosine_sum;
    const double phi1 = -m2 * l1 * lc2 * terms.square_of_velocity_2 * sine_2 -
                        2 * m2 * l1 * lc2 * velocity_2 * velocity_1 * sine_2 +
                        (m1 * lc1 + m2 * l1) * gravity * terms.cosine_1 + phi2;
    const double reaction = torque + d2 / d1 * phi1;
    const double inertia = m2 * squares.com_pos_2 + moi - terms.square_of_inertia_2 / d1;
    const double reduced =
        config.nips ? reaction - phi2 : reaction - m2 * l1 * lc2 * terms.square_of_velocity_1 * sine_2 - phi2;
    const double acceleration_2 = reduced / inertia;
    const double acceleration_1 = -(d2 * acceleration_2 + phi1) / d1;
    return {velocity_1, velocity_2, acceleration_1, acceleration_2};
  }

  PENSTOCK_HOST_DEVICE static bool can_wrap(double angle) { return std::abs(angle) < 1e6; }

  /// The angle between -pi and pi, by whole turns. Gymnasium never returns from an angle that a turn does not change.
  PENSTOCK_HOST_DEVICE static double wrap(double angle) {
    if (!can_wrap(angle))
      PENSTOCK_FAIL("the integration diverged, an angle is " + std::to_string(angle) +
                    ": choose a shorter dt or less torque noise");
    while (angle > pi) angle -= 2 * pi;
    while (angle < -pi) angle += 2 * pi;
    return angle;
  }
};

}  // namespace penstock
