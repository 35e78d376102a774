/// MiniGrid's grid with its agent: what an episode's state is, how cells are read and objects are placed, and the view.
///
/// Draws come in MiniGrid's order, so that equal seeds give equal grids.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "penstock/env.hpp"
#include "penstock/minigrid/cells.hpp"

namespace penstock::minigrid {

inline constexpr std::int64_t largest_side = 25, view = 7;
inline constexpr std::size_t words = (largest_side * largest_side + 7) / 8, most_obstacles = 8;
inline constexpr std::array<std::int64_t, 4> ahead_x{1, 0, -1, 0}, ahead_y{0, 1, 0, -1};
inline constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

struct Place {
  std::int64_t x, y;
  bool operator==(const Place&) const = default;
};

/// Everything that the next step depends on. Eight cells share a word, row by row, so that a state is small.
struct State {
  std::array<std::int64_t, words> cells;
  std::int64_t width, height, x, y, direction, carried, steps;
  std::int64_t target;  ///< the place of the door, as y * width + x; in Fetch the cell that is fetched
  std::array<std::int64_t, most_obstacles> obstacles;  ///< their places, as y * width + x
  PENSTOCK_FIELDS(State, cells, width, height, x, y, direction, carried, steps, target, obstacles)
};

/// A grid and the agent in it, as operations on a state.
class World {
 public:
  explicit World(State& state) : s(state) {}

  /// Starts over: an empty grid, and an agent that is nowhere.
  void clear(std::int64_t width, std::int64_t height) {
    s.cells.fill(std::int64_t{0x0101010101010101} * nothing);
    s.obstacles.fill(0);
    s.width = width, s.height = height, s.x = s.y = -1;
    s.direction = s.carried = s.steps = s.target = 0;
  }

  static Cell at(const State& s, std::int64_t x, std::int64_t y) {
    if (std::uint64_t(x) >= std::uint64_t(s.width) || std::uint64_t(y) >= std::uint64_t(s.height)) return stone;
    const auto i = std::size_t(y * s.width + x);
    return Cell(std::uint64_t(s.cells[i / 8]) >> (i % 8 * 8));
  }
  [[nodiscard]] Cell at(Place p) const { return at(s, p.x, p.y); }
  void set(Place p, Cell value) {
    const auto i = std::size_t(p.y * s.width + p.x);
    const std::size_t shift = i % 8 * 8;
    const std::uint64_t others = std::uint64_t(s.cells[i / 8]) & ~(std::uint64_t{0xff} << shift);
    s.cells[i / 8] = std::int64_t(others | std::uint64_t{value} << shift);
  }
  [[nodiscard]] std::int64_t index(Place p) const { return p.y * s.width + p.x; }
  [[nodiscard]] Place place(std::int64_t index) const { return {index % s.width, index / s.width}; }
  [[nodiscard]] Place agent() const { return {s.x, s.y}; }
  [[nodiscard]] Place ahead() const {
    return {s.x + ahead_x[std::size_t(s.direction)], s.y + ahead_y[std::size_t(s.direction)]};
  }
  void put_agent(Place p, std::int64_t direction) { s.x = p.x, s.y = p.y, s.direction = direction; }

  void row(std::int64_t x, std::int64_t y, std::int64_t length, Cell value = stone) {
    for (std::int64_t i = 0; i < length; ++i) set({x + i, y}, value);
  }
  void column(std::int64_t x, std::int64_t y, std::int64_t length, Cell value = stone) {
    for (std::int64_t i = 0; i < length; ++i) set({x, y + i}, value);
  }
  void rectangle(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t height) {
    row(x, y, width), row(x, y + height - 1, width), column(x, y, height), column(x + width - 1, y, height);
  }

  /// Draws a place in the rectangle until it is empty, not the agent's and not refused; false after too many tries.
  template <class Refuse>
  bool find(Rng& rng, Place top, Place size, std::int64_t tries, Refuse&& refuse, Place& found) const {
    top = {std::max<std::int64_t>(top.x, 0), std::max<std::int64_t>(top.y, 0)};
    for (std::int64_t tried = 0; tried <= tries; ++tried) {
      found.x = rng.integers(top.x, std::min(top.x + size.x, s.width));
      found.y = rng.integers(top.y, std::min(top.y + size.y, s.height));
      if (at(found) == nothing && found != agent() && !refuse(found)) return true;
    }
    return false;
  }

  Place put(Rng& rng, Cell value, Place top, Place size, std::int64_t tries = no_limit - 1) {
    return put(rng, value, top, size, tries, [](Place) { return false; });
  }
  template <class Refuse>
  Place put(Rng& rng, Cell value, Place top, Place size, std::int64_t tries, Refuse&& refuse) {
    Place found{};
    if (!find(rng, top, size, tries, refuse, found)) PENSTOCK_FAIL("no place was found for an object");
    set(found, value);
    return found;
  }
  Place put_anywhere(Rng& rng, Cell value) { return put(rng, value, {0, 0}, {s.width, s.height}); }

  void put_agent(Rng& rng, Place top, Place size, std::int64_t tries = no_limit - 1) {
    s.x = s.y = -1;
    const Place found = put(rng, nothing, top, size, tries);
    put_agent(found, rng.integers(0, 4));
  }

 private:
  State& s;
};

inline Color draw_color(Rng& rng) { return colors_by_name[std::size_t(rng.integers(0, 6))]; }

/// Writes what the agent sees: kind, colour and state of each cell of a square in front of it, the agent at the middle of
/// its last row with what it carries, and 0 where walls and doors hide a cell.
inline void see(const State& s, bool through_walls, std::span<std::uint8_t, view * view * 3> out) {
  const auto facing = std::size_t(s.direction);
  const std::int64_t dx = ahead_x[facing], dy = ahead_y[facing];
  std::uint32_t lit = std::uint32_t{1} << (view / 2);
  for (std::int64_t j = view - 1; j >= 0; --j) {
    std::array<Cell, view> cells;
    std::uint32_t clear = 0, above = 0;
    std::int64_t x = s.x + dx * (view - 1 - j) + dy * (view / 2), y = s.y + dy * (view - 1 - j) - dx * (view / 2);
    for (std::size_t i = 0; i < view; ++i, x -= dy, y += dx) {
      cells[i] = World::at(s, x, y);
      clear |= std::uint32_t{!hides_what_is_behind(cells[i])} << i;
    }
    if (through_walls) {
      lit = (1u << view) - 1;
    } else {
      for (std::uint32_t i = 0; i + 1 < view; ++i)
        if ((lit & clear) >> i & 1) lit |= 2u << i, above |= 3u << i;
      for (std::uint32_t i = view - 1; i > 0; --i)
        if ((lit & clear) >> i & 1) lit |= 1u << (i - 1), above |= 3u << (i - 1);
    }
    if (j == view - 1) cells[view / 2] = s.carried != 0 ? Cell(s.carried) : nothing;
    for (std::size_t i = 0; i < view; ++i) {
      const auto& shown = seen_as[(lit >> i & 1) != 0 ? cells[i] : Cell(unseen)];
      std::copy(shown.begin(), shown.end(), out.begin() + std::ptrdiff_t(3 * (i * view + std::size_t(j))));
    }
    lit = above;
  }
}

}  // namespace penstock::minigrid
