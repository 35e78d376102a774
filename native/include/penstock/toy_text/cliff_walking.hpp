/// CliffWalking-v1 and CliffWalkingSlippery-v1, equal to gymnasium.envs.toy_text.cliffwalking step for step. The square
/// is seen one-hot.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/env/variants.hpp"
#include "penstock/toy_text/painting.hpp"
#include "penstock/toy_text/tables.hpp"

namespace penstock {

struct CliffWalking {
  static constexpr std::int64_t rows = 4, columns = 12;
  static constexpr std::size_t squares = rows * columns;
  static constexpr Info info{.id = "toy/CliffWalking-v1"};
  static constexpr Discrete<4> action{};
  static constexpr auto observation = Box<squares>::filled(0, 1);

  struct Config {
    bool is_slippery = false;
    PENSTOCK_FIELDS(Config, is_slippery)
  } config;
  static auto variants() {
    return std::array{Variant<Config>{info, {}},
                      Variant<Config>{{.id = "toy/CliffWalkingSlippery-v1"}, {.is_slippery = true}}};
  }

  struct State {
    std::int64_t square;
    PENSTOCK_FIELDS(State, square)
  } state;

  [[nodiscard]] const char* state_problem() const {
    return std::size_t(state.square) < squares ? nullptr : "has a square beyond 47";
  }

  using Report = toy_text::Report;
  Report report;
  static constexpr std::size_t reset_reports = 1;

  void reset(Rng& rng) {
    rng.random();  // Gymnasium draws the square out of one
    state.square = start;
    report.prob = 1.0;
  }

  /// Up, right, down, left.
  Step step(std::int64_t wanted, Rng& rng) {
    std::int64_t direction = wanted;
    report.prob = 1.0;
    if (config.is_slippery) {
      constexpr std::array probabilities{1.0 / 3, 1.0 / 3, 1.0 / 3};
      direction = (wanted + 3 + std::int64_t(toy_text::choose(probabilities, rng))) % 4;
      report.prob = probabilities[0];
    } else {
      rng.random();
    }
    constexpr std::array<std::int64_t, 4> down{-1, 0, 1, 0}, right{0, 1, 0, -1};
    const std::int64_t row = std::clamp<std::int64_t>(state.square / columns + down[std::size_t(direction)], 0, rows - 1);
    const std::int64_t column =
        std::clamp<std::int64_t>(state.square % columns + right[std::size_t(direction)], 0, columns - 1);
    const bool falls = row == rows - 1 && column > 0 && column < columns - 1;
    state.square = falls ? start : row * columns + column;
    return {.reward = falls ? -100.0 : -1.0, .terminated = state.square == std::int64_t(squares) - 1};
  }

  void observe(std::span<float, squares> out) const { toy_text::show(state.square, out); }

  static constexpr FrameSize frame{.height = 96, .width = 288};

  void draw(Canvas& canvas) const {
    toy_text::Board board(canvas, rows, columns);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column) {
        const bool is_last = row == rows - 1, is_cliff = is_last && column > 0 && column < columns - 1;
        board.square(row, column, is_cliff ? Rgb{90, 70, 60} : is_last && column == 0 ? toy_text::start_color : Rgb{215, 225, 200});
      }
    board.box(rows - 1, columns - 1, 0.6, toy_text::goal_color);
    board.disc(state.square / columns, state.square % columns, 0.5, toy_text::player_color);
  }

 private:
  static constexpr std::int64_t start = (rows - 1) * columns;
};

}  // namespace penstock
