/// Three agents that should cover three landmarks without running into each other: simple_spread_v3 of PettingZoo's
/// Multi Particle Environments (mpe2), equal to its parallel environment step for step.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "penstock/env.hpp"
#include "penstock/random/numpy_math.hpp"

namespace penstock {

/// `Continuous` is mpe2's `continuous_actions`: an environment of its own, for it has another action space.
template <bool Continuous>
struct SimpleSpreadOf {
  static constexpr std::size_t agents = 3, landmarks = 3, seen = 18;
  static constexpr Info info{.id = Continuous ? "simple_spread_continuous_v3" : "simple_spread_v3",
                             .max_episode_steps = 25};
  static constexpr double sensitivity = 5.0, dt = 0.1, damping = 0.25, contact_force = 1e2, contact_margin = 1e-3;
  static constexpr double agent_size = 0.15, contact_distance = agent_size + agent_size;
  static constexpr float unlimited = std::numeric_limits<float>::infinity();
  static constexpr auto action = [] {
    if constexpr (Continuous) return Box<agents, 5>::filled(0.0f, 1.0f);
    else return MultiDiscrete<5, agents>{};
  }();
  static constexpr auto observation = Box<agents, seen>::filled(-unlimited, unlimited);
  using Action = typename std::remove_cvref_t<decltype(action)>::Argument;

  struct Config {
    double local_ratio = 0.5;  ///< share of a reward that is the agent's own; the rest is the team's
    PENSTOCK_FIELDS(Config, local_ratio)
    [[nodiscard]] const char* problem() const {
      return local_ratio >= 0 && local_ratio <= 1 ? nullptr : "local_ratio must be between 0 and 1";
    }
  } config;

  /// x and y of each.
  struct State {
    std::array<double, 2 * agents> position, velocity;
    std::array<double, 2 * landmarks> landmark;
    PENSTOCK_FIELDS(State, position, velocity, landmark)
  } state;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) {
    rng.uniform(-1.0, 1.0, state.position);
    rng.uniform(-1.0, 1.0, state.landmark);
    state.velocity.fill(0.0);
  }

  PENSTOCK_HOST_DEVICE TeamStep<agents> step(Action chosen) {
    std::array<double, 2 * agents> force = wanted_force(chosen);
    for (std::size_t a = 0; a < agents; ++a)
      for (std::size_t b = a + 1; b < agents; ++b) push_apart(a, b, force);
    for (std::size_t i = 0; i < force.size(); ++i) {
      state.position[i] += state.velocity[i] * dt;
      state.velocity[i] = state.velocity[i] * (1 - damping) + force[i] * dt;
    }
    const double team = team_reward();
    TeamStep<agents> result;
    for (std::size_t agent = 0; agent < agents; ++agent) {
      double own = 0.0;
      for (std::size_t other = 0; other < agents; ++other)
        if (other != agent && distance(state.position, agent, state.position, other) < contact_distance) own -= 1.0;
      result.rewards[agent] = team * (1 - config.local_ratio) + own * config.local_ratio;
    }
    return result;
  }

  /// For each agent its velocity, its position, the landmarks and the other agents as seen from it, and what the others
  /// say to it, which here is nothing.
  PENSTOCK_HOST_DEVICE void observe(std::span<float, agents * seen> out) const {
    auto next = out.begin();
    const auto put = [&](const double* from, const double* origin) {
      for (std::size_t axis = 0; axis < 2; ++axis) *next++ = float(from[axis] - origin[axis]);
    };
    constexpr std::array<double, 2> zero{};
    for (std::size_t agent = 0; agent < agents; ++agent) {
      const double* own = &state.position[2 * agent];
      put(&state.velocity[2 * agent], zero.data());
      put(own, zero.data());
      for (std::size_t landmark = 0; landmark < landmarks; ++landmark) put(&state.landmark[2 * landmark], own);
      for (std::size_t other = 0; other < agents; ++other)
        if (other != agent) put(&state.position[2 * other], own);
      next = std::fill_n(next, 2 * (agents - 1), 0.0f);
    }
  }

  static constexpr FrameSize frame{.height = 256, .width = 256};

  /// The square from -1.4 to 1.4, y up as in the environment's own coordinates: landmarks grey, agents blue.
  void draw(Canvas& canvas) const {
    const double scale = canvas.width() / 2.8;
    const auto put = [&](const double* at, double radius, Rgb color) {
      canvas.disc((at[0] + 1.4) * scale, (1.4 - at[1]) * scale, radius * scale, color);
    };
    for (std::size_t landmark = 0; landmark < landmarks; ++landmark) put(&state.landmark[2 * landmark], 0.05, {90, 90, 90});
    for (std::size_t agent = 0; agent < agents; ++agent)
      put(&state.position[2 * agent], contact_distance / 2, {std::uint8_t(40 + 50 * agent), 90, 215});
  }

 private:
  /// Choices are nothing, left, right, down, up; continuous ones have a strength for each.
  PENSTOCK_HOST_DEVICE static std::array<double, 2 * agents> wanted_force(Action chosen) {
    std::array<double, 2 * agents> force{};
    for (std::size_t agent = 0; agent < agents; ++agent) {
      if constexpr (Continuous) {
        const auto strength = [&](std::size_t i) { return std::clamp(chosen[5 * agent + i], 0.0f, 1.0f); };
        force[2 * agent] = double{strength(2) - strength(1)} * sensitivity;
        force[2 * agent + 1] = double{strength(4) - strength(3)} * sensitivity;
      } else if (const std::int64_t choice = chosen[agent]; choice > 0) {
        force[2 * agent + (choice > 2 ? 1 : 0)] = choice % 2 == 0 ? sensitivity : -sensitivity;
      }
    }
    return force;
  }

  /// The soft contact of two agents, which is felt a little beyond their rims too.
  PENSTOCK_HOST_DEVICE void push_apart(std::size_t a, std::size_t b, std::array<double, 2 * agents>& force) const {
    const double apart = distance(state.position, a, state.position, b);
    const double penetration = log_add_exp(0.0, -(apart - contact_distance) / contact_margin) * contact_margin;
    for (std::size_t axis = 0; axis < 2; ++axis) {
      const double push =
          contact_force * (state.position[2 * a + axis] - state.position[2 * b + axis]) / apart * penetration;
      force[2 * a + axis] += push;
      force[2 * b + axis] -= push;
    }
  }

  /// Minus the distances of the landmarks to the agent that is nearest to each.
  [[nodiscard]] PENSTOCK_HOST_DEVICE double team_reward() const {
    double reward = 0.0;
    for (std::size_t landmark = 0; landmark < landmarks; ++landmark) {
      double nearest = std::numeric_limits<double>::infinity();
      for (std::size_t agent = 0; agent < agents; ++agent)
        nearest = std::min(nearest, distance(state.position, agent, state.landmark, landmark));
      reward -= nearest;
    }
    return reward;
  }

  PENSTOCK_HOST_DEVICE static double distance(const std::array<double, 6>& from, std::size_t i,
                                              const std::array<double, 6>& to, std::size_t j) {
    const double x = from[2 * i] - to[2 * j], y = from[2 * i + 1] - to[2 * j + 1];
    return std::sqrt(x * x + y * y);
  }
};

using SimpleSpread = SimpleSpreadOf<false>;
using SimpleSpreadContinuous = SimpleSpreadOf<true>;

}  // namespace penstock
