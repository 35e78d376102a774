/// FrozenLake-v1 and FrozenLake8x8-v1, equal to gymnasium.envs.toy_text.frozen_lake step for step. The square is seen
/// one-hot, as Gymnasium's FlattenObservation shows it. A pool's map is what it shares.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/toy_text/lake_map.hpp"
#include "penstock/toy_text/painting.hpp"
#include "penstock/toy_text/tables.hpp"

namespace penstock::toy_text {

template <std::int64_t Side>
struct FrozenLakeOf {
  static_assert(Side == 4 || Side == 8);
  static constexpr Info info = Side == 4
      ? Info{.id = "toy/FrozenLake-v1", .max_episode_steps = 100, .reward_threshold = 0.70}
      : Info{.id = "toy/FrozenLake8x8-v1", .max_episode_steps = 200, .reward_threshold = 0.85};
  static constexpr Discrete<4> action{};
  static constexpr auto observation = Box<std::size_t(Side * Side)>::filled(0, 1);

  struct Shared : LakeMap {
    explicit Shared(const std::string& map) : LakeMap(map.empty() ? Side == 4 ? "4x4" : "8x8" : map) {}
  };
  explicit FrozenLakeOf(const Shared& shared) : map(&shared) {}

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

  [[nodiscard]] const char* state_problem() const {
    return std::size_t(state.square) < map->letters.size() ? nullptr : "has a square that is not on this pool's map";
  }

  using Report = toy_text::Report;
  Report report;
  static constexpr std::size_t reset_reports = 1;

  void reset(Rng& rng) {
    state.square = std::int64_t(choose(map->beginnings, rng));
    report.prob = 1.0;
  }

  Step step(std::int64_t wanted, Rng& rng) {
    std::int64_t direction = wanted;
    report.prob = 1.0;
    if (config.is_slippery) {
      const double other = (1.0 - config.success_rate) / 2.0;
      const std::array probabilities{other, config.success_rate, other};
      const std::size_t drawn = choose(probabilities, rng);
      direction = (wanted + 3 + std::int64_t(drawn)) % 4;
      report.prob = probabilities[drawn];
    } else {
      rng.random();
    }
    const std::int64_t columns = map->columns;
    std::int64_t row = state.square / columns, column = state.square % columns;
    if (direction == 0 && column > 0) --column;
    if (direction == 1 && row < map->rows() - 1) ++row;
    if (direction == 2 && column < columns - 1) ++column;
    if (direction == 3 && row > 0) --row;
    state.square = row * columns + column;
    const char letter = map->letters[std::size_t(state.square)];
    return {.reward = letter == 'G' ? config.goal_reward : letter == 'H' ? config.hole_reward : config.step_reward,
            .terminated = letter == 'G' || letter == 'H'};
  }

  [[nodiscard]] std::size_t row_size() const { return map->letters.size(); }
  void observe(std::span<float> out) const { show(state.square, out); }

  static constexpr FrameSize frame = picture;

  void draw(Canvas& canvas) const {
    Board board(canvas, map->rows(), map->columns);
    for (std::int64_t square = 0; square < std::int64_t(map->letters.size()); ++square) {
      const char letter = map->letters[std::size_t(square)];
      const std::int64_t row = square / map->columns, column = square % map->columns;
      board.square(row, column, letter == 'S' ? start_color : ice);
      if (letter == 'H') board.disc(row, column, 0.8, water);
      if (letter == 'G') board.box(row, column, 0.6, goal_color);
    }
    board.disc(state.square / map->columns, state.square % map->columns, 0.5, player_color);
  }

 private:
  const Shared* map;
};

}  // namespace penstock::toy_text

namespace penstock {

using FrozenLake = toy_text::FrozenLakeOf<4>;
using FrozenLake8x8 = toy_text::FrozenLakeOf<8>;

}  // namespace penstock
