/// FrozenLake-v1 and FrozenLake8x8-v1, equal to gymnasium.envs.toy_text.frozen_lake step for step. The square is seen
/// one-hot, as Gymnasium's FlattenObservation shows it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "penstock/toy_text/tables.hpp"

namespace penstock::toy_text {

template <std::int64_t Side>
struct FrozenLakeOf {
  static_assert(Side == 4 || Side == 8);
  static constexpr std::size_t squares = Side * Side;
  static constexpr std::string_view map = Side == 4 ? "SFFFFHFHFFFHHFFG"
                                                    : "SFFFFFFFFFFFFFFFFFFHFFFFFFFFFHFFFFFHFFFFFHHFFFHFFHFFHFHFFFFHFFFG";
  static constexpr Info info = Side == 4
      ? Info{.id = "toy/FrozenLake-v1", .max_episode_steps = 100, .reward_threshold = 0.70}
      : Info{.id = "toy/FrozenLake8x8-v1", .max_episode_steps = 200, .reward_threshold = 0.85};
  static constexpr Discrete<4> action{};
  static constexpr auto observation = Box<squares>::filled(0, 1);

  struct Config {
    bool is_slippery = true;
    double success_rate = 1.0 / 3.0;
    double goal_reward = 1.0, hole_reward = 0.0, step_reward = 0.0;  ///< Gymnasium's reward_schedule
    PENSTOCK_FIELDS(Config, is_slippery, success_rate, goal_reward, hole_reward, step_reward)
    [[nodiscard]] const char* problem() const {
      return success_rate >= 0 && success_rate <= 1 ? nullptr : "success_rate must be between 0 and 1";
    }
  } config;

  struct State {
    std::int64_t square;
    PENSTOCK_FIELDS(State, square)
  } state;

  using Report = toy_text::Report;
  Report report;
  static constexpr std::size_t reset_reports = 1;

  void reset(Rng& rng) {
    rng.random();  // Gymnasium draws the square out of one
    state.square = 0;
    report.prob = 1.0;
  }

  Step step(std::int64_t wanted, Rng& rng) {
    std::int64_t direction = wanted;
    report.prob = 1.0;
    if (config.is_slippery) {
      const double other = (1.0 - config.success_rate) / 2.0;
      const std::array probabilities{other, config.success_rate, other};
      const std::size_t drawn = draw(probabilities, rng);
      direction = (wanted + 3 + std::int64_t(drawn)) % 4;
      report.prob = probabilities[drawn];
    } else {
      rng.random();
    }
    std::int64_t row = state.square / Side, column = state.square % Side;
    if (direction == 0 && column > 0) --column;
    if (direction == 1 && row < Side - 1) ++row;
    if (direction == 2 && column < Side - 1) ++column;
    if (direction == 3 && row > 0) --row;
    state.square = row * Side + column;
    const char letter = map[std::size_t(state.square)];
    return {.reward = letter == 'G' ? config.goal_reward : letter == 'H' ? config.hole_reward : config.step_reward,
            .terminated = letter == 'G' || letter == 'H'};
  }

  void observe(std::span<float, squares> out) const { show(state.square, out); }
};

}  // namespace penstock::toy_text

namespace penstock {

using FrozenLake = toy_text::FrozenLakeOf<4>;
using FrozenLake8x8 = toy_text::FrozenLakeOf<8>;

}  // namespace penstock
