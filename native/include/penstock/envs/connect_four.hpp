/// Connect four against an opponent who moves at random: the board, the rules and the observation are those of
/// PettingZoo's connect_four_v3. A coin decides which player begins; a move that is forbidden loses, as in PettingZoo.
/// With `turns` both players are the caller's, for self-play: a step is one move, its reward is the mover's, and the
/// observation is that of the player who moves next.
#pragma once

#include <algorithm>
#include <array>

#include "penstock/env.hpp"

namespace penstock {

struct ConnectFour {
  static constexpr std::int64_t rows = 6, columns = 7;
  static constexpr Info info{.id = "ConnectFour-v0"};
  static constexpr Discrete<columns> action{};
  static constexpr auto observation = BoxOf<std::uint8_t, rows, columns, 2>::filled(0, 1);

  static constexpr FrameSize frame{.height = 32 * rows, .width = 32 * columns};

  struct Config {
    bool turns = false;
    PENSTOCK_FIELDS(Config, turns)
  } config;

  enum Cell : std::int64_t { empty, own, other };
  struct State {
    std::array<std::int64_t, rows * columns> board;  ///< row-major, the top row first
    PENSTOCK_FIELDS(State, board)
  } state;

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) {
    state.board.fill(empty);
    if (!config.turns && rng.integers(0, 2) == 1) reply(rng);
  }

  PENSTOCK_HOST_DEVICE Step step(std::int64_t column, Rng& rng) {
    if (!allows(column)) return {.reward = -1.0, .terminated = true};
    const bool wins = drop(column, own);
    if (config.turns) {
      swap_players();
      return {.reward = wins ? 1.0 : 0.0, .terminated = wins || full()};
    }
    if (wins) return {.reward = 1.0, .terminated = true};
    if (full()) return {.terminated = true};
    if (reply(rng)) return {.reward = -1.0, .terminated = true};
    return {.terminated = full()};
  }

  PENSTOCK_HOST_DEVICE void action_mask(std::span<bool, columns> out) const {
    for (std::int64_t column = 0; column < columns; ++column) out[std::size_t(column)] = allows(column);
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<std::uint8_t, 2 * rows * columns> out) const {
    for (std::size_t cell = 0; cell < state.board.size(); ++cell)
      out[2 * cell] = state.board[cell] == own, out[2 * cell + 1] = state.board[cell] == other;
  }

  /// The player who moves is red.
  void draw(Canvas& canvas) const {
    canvas.clear({30, 70, 160});
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const std::int64_t piece = state.board[std::size_t(i)];
      const Rgb color = piece == own ? Rgb{210, 50, 40} : piece == other ? Rgb{245, 205, 60} : Rgb{235, 240, 248};
      canvas.disc(double(32 * (i % columns) + 16), double(32 * (i / columns) + 16), 13, color);
    }
  }

 private:
  [[nodiscard]] PENSTOCK_HOST_DEVICE bool allows(std::int64_t column) const {
    return state.board[std::size_t(column)] == empty;
  }
  [[nodiscard]] PENSTOCK_HOST_DEVICE bool full() const {
    return std::find(state.board.begin(), state.board.begin() + columns, empty) == state.board.begin() + columns;
  }
  [[nodiscard]] PENSTOCK_HOST_DEVICE bool is(std::int64_t row, std::int64_t column, std::int64_t piece) const {
    return row >= 0 && row < rows && column >= 0 && column < columns &&
        state.board[std::size_t(row * columns + column)] == piece;
  }

  /// Puts a piece into a column that is not full; whether it makes a line of four.
  PENSTOCK_HOST_DEVICE bool drop(std::int64_t column, std::int64_t piece) {
    std::int64_t row = rows - 1;
    while (!is(row, column, empty)) --row;
    state.board[std::size_t(row * columns + column)] = piece;
    const auto run = [&](std::int64_t down, std::int64_t right) {
      std::int64_t length = 0;
      while (is(row + (length + 1) * down, column + (length + 1) * right, piece)) ++length;
      return length;
    };
    for (const auto& [down, right] : {std::pair{0, 1}, {1, 0}, {1, 1}, {1, -1}})
      if (run(down, right) + run(-down, -right) >= 3) return true;
    return false;
  }

  PENSTOCK_HOST_DEVICE void swap_players() {
    for (std::int64_t& cell : state.board)
      if (cell != empty) cell = cell == own ? other : own;
  }

  /// The opponent's move, any that is allowed; whether it wins.
  PENSTOCK_HOST_DEVICE bool reply(Rng& rng) {
    const auto top = state.board.begin();
    std::int64_t chosen = rng.integers(0, std::count(top, top + columns, empty)), column = 0;
    while (!allows(column) || chosen-- > 0) ++column;
    return drop(column, other);
  }
};

}  // namespace penstock
