/// CartPole-v1, equal to gymnasium.envs.classic_control.cartpole step for step: the order of operations is Gymnasium's.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>

#include "penstock/env.hpp"
#include "penstock/simd/group.hpp"
#include "penstock/simd/sine_cosine.hpp"

namespace penstock {

struct CartPole {
  static constexpr Info info{.id = "CartPole-v1", .max_episode_steps = 500, .reward_threshold = 475.0};
  static constexpr double x_limit = 2.4, angle_limit = 12 * 2 * std::numbers::pi / 360;
  static constexpr double unlimited = std::numeric_limits<double>::infinity();
  static constexpr Discrete<2> action{};
  static constexpr auto observation = Box<4>::symmetric({2 * x_limit, unlimited, 2 * angle_limit, unlimited});

  struct State {
    double x, x_dot, angle, angle_dot;
    PENSTOCK_FIELDS(State, x, x_dot, angle, angle_dot)
  } state;

  struct Config {
    double gravity = 9.8, masscart = 1.0, masspole = 0.1, length = 0.5, force_mag = 10.0, tau = 0.02;
    bool sutton_barto_reward = false;
    PENSTOCK_FIELDS(Config, gravity, masscart, masspole, length, force_mag, tau, sutton_barto_reward)
    [[nodiscard]] const char* problem() const {
      return masscart > 0 && masspole > 0 && length > 0 && tau > 0 ? nullptr
                                                                   : "masscart, masspole, length and tau must be > 0";
    }
  } config;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) {
    for (double* value : {&state.x, &state.x_dot, &state.angle, &state.angle_dot}) *value = rng.uniform(-0.05, 0.05);
  }

  PENSTOCK_HOST_DEVICE Step step(std::int64_t push_right) {
    auto& [x, x_dot, angle, angle_dot] = state;
    return result(config, move(config, static_cast<double>(push_right), std::cos(angle), std::sin(angle), x, x_dot,
                               angle, angle_dot));
  }

  static bool can_step_group(const Config&) { return true; }

  template <class E>
  [[gnu::always_inline]] static bool step_group(const Group<E>& group, const std::int64_t* push_right,
                                                std::array<Step, group_size>& steps) {
    std::array<double, group_size> x, x_dot, angle, angle_dot, sine, cosine;
    for (std::size_t i = 0; i < group_size; ++i) {
      const State& from = group[i]->state;
      x[i] = from.x, x_dot[i] = from.x_dot, angle[i] = from.angle, angle_dot[i] = from.angle_dot;
    }
    small_sines_and_cosines(angle, sine, cosine);
    const Config config = group[0]->config;
    std::array<std::int64_t, group_size> fell;
    for (std::size_t i = 0; i < group_size; ++i)
      fell[i] =
          move(config, choice_value(push_right[i]), cosine[i], sine[i], x[i], x_dot[i], angle[i], angle_dot[i]);
    for (std::size_t i = 0; i < group_size; ++i) {
      group[i]->state = {x[i], x_dot[i], angle[i], angle_dot[i]};
      steps[i] = result(config, fell[i] != 0);
    }
    return true;
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<float, 4> out) const {
    const auto [x, x_dot, angle, angle_dot] = state;
    out[0] = float(x), out[1] = float(x_dot), out[2] = float(angle), out[3] = float(angle_dot);
  }

 private:
  /// Moves by one step, and returns whether the pole fell or the cart left the track.
  [[gnu::always_inline]] PENSTOCK_HOST_DEVICE static bool move(const Config& config, double push_right, double cosine,
                                                               double sine, double& x, double& x_dot, double& angle,
                                                               double& angle_dot) {
    const auto [gravity, masscart, masspole, length, force_mag, tau, sutton_barto_reward] = config;
    const double total_mass = masspole + masscart, polemass_length = masspole * length;
    // Not a branch: a policy's choice is what no processor predicts.
    const double force = (2 * push_right - 1) * force_mag;
    const double push = (force + polemass_length * (angle_dot * angle_dot) * sine) / total_mass;
    const double angle_acc =
        (gravity * sine - cosine * push) / (length * (4.0 / 3.0 - masspole * (cosine * cosine) / total_mass));
    const double x_acc = push - polemass_length * angle_acc * cosine / total_mass;
    x = x + tau * x_dot;
    x_dot = x_dot + tau * x_acc;
    angle = angle + tau * angle_dot;
    angle_dot = angle_dot + tau * angle_acc;
    return bool((x < -x_limit) | (x > x_limit) | (angle < -angle_limit) | (angle > angle_limit));
  }

  PENSTOCK_HOST_DEVICE static Step result(const Config& config, bool fell) {
    return {.reward = config.sutton_barto_reward ? (fell ? -1.0 : 0.0) : 1.0, .terminated = fell};
  }
};

}  // namespace penstock
