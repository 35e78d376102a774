/// A grid of equal rooms with doors between neighbours: MiniGrid's RoomGrid, draw for draw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "penstock/minigrid/world.hpp"

namespace penstock::minigrid {

/// Only while an episode is made: what remains of it is in the cells. Sides are 0 right, 1 below, 2 left, 3 above.
class Rooms {
  struct Room {
    std::array<bool, 4> neighbor{}, open{};
    std::array<Place, 4> gap{};
    bool locked = false;
  };
  static constexpr std::int64_t tries = 1000, connect_tries = 5000;

 public:
  Rooms(World& made, Rng& drawn, std::int64_t size, std::int64_t across, std::int64_t down)
      : world(made), rng(drawn), side(size), columns(across), rows(down) {
    for (std::int64_t j = 0; j < rows; ++j)
      for (std::int64_t i = 0; i < columns; ++i) world.rectangle(top(i, j).x, top(i, j).y, side, side);
    for (std::int64_t j = 0; j < rows; ++j)
      for (std::int64_t i = 0; i < columns; ++i) {
        const Place low{top(i, j).x + 1, top(i, j).y + 1}, high{top(i, j).x + side - 1, top(i, j).y + side - 1};
        Room& room = at(i, j);
        room.neighbor = {i + 1 < columns, j + 1 < rows, i > 0, j > 0};
        if (room.neighbor[0]) room.gap[0] = {high.x, rng.integers(low.y, high.y)};
        if (room.neighbor[1]) room.gap[1] = {rng.integers(low.x, high.x), high.y};
        if (room.neighbor[2]) room.gap[2] = at(i - 1, j).gap[0];
        if (room.neighbor[3]) room.gap[3] = at(i, j - 1).gap[1];
      }
    world.put_agent({columns / 2 * (side - 1) + side / 2, rows / 2 * (side - 1) + side / 2}, 0);
  }

  /// Puts an object into a room, not next to the agent.
  void add(std::int64_t i, std::int64_t j, Cell object) {
    const Place agent = world.agent();
    world.put(rng, object, top(i, j), {side, side}, tries,
              [&](Place p) { return std::abs(agent.x - p.x) + std::abs(agent.y - p.y) < 2; });
  }

  /// Puts a door into a room's side; where it is.
  Place add_door(std::int64_t i, std::int64_t j, std::size_t wall_side, Color color, bool locked) {
    at(i, j).locked = locked;
    const Place gap = at(i, j).gap[wall_side];
    world.set(gap, cell(locked ? locked_door : closed_door, color));
    connect(i, j, wall_side);
    return gap;
  }

  /// Opens the whole side between a room and the one above it.
  void remove_wall_above(std::int64_t i, std::int64_t j) {
    world.row(top(i, j).x + 1, top(i, j).y, side - 2, nothing);
    connect(i, j, 3);
  }

  /// Puts the agent into a room, in front of nothing or of a wall.
  void put_agent(std::int64_t i, std::int64_t j) {
    for (;;) {
      world.put_agent(rng, top(i, j), {side, side}, tries);
      const Kind front = kind_of(world.at(world.ahead()));
      if (front == empty || front == wall) return;
    }
  }

  /// Adds doors until every room can be reached from the agent's.
  void connect_all() {
    const Place agent = world.agent();
    for (std::int64_t tried = 0; !all_reached(agent.x / (side - 1), agent.y / (side - 1)); ++tried) {
      if (tried > connect_tries) PENSTOCK_FAIL("no doors were found that connect all rooms");
      const std::int64_t i = rng.integers(0, columns), j = rng.integers(0, rows);
      const auto wall_side = std::size_t(rng.integers(0, 4));
      const Room& room = at(i, j);
      if (!room.neighbor[wall_side] || room.open[wall_side] || room.locked || beside(i, j, wall_side).locked) continue;
      add_door(i, j, wall_side, draw_color(rng), false);
    }
  }

 private:
  Room& at(std::int64_t i, std::int64_t j) { return rooms[std::size_t(j * 3 + i)]; }
  Room& beside(std::int64_t i, std::int64_t j, std::size_t wall_side) {
    return at(i + ahead_x[wall_side], j + ahead_y[wall_side]);
  }
  [[nodiscard]] Place top(std::int64_t i, std::int64_t j) const { return {i * (side - 1), j * (side - 1)}; }

  void connect(std::int64_t i, std::int64_t j, std::size_t wall_side) {
    at(i, j).open[wall_side] = true;
    beside(i, j, wall_side).open[(wall_side + 2) % 4] = true;
  }

  bool all_reached(std::int64_t i, std::int64_t j) {
    std::array<bool, 9> reached{};
    reach(i, j, reached);
    std::int64_t count = 0;
    for (const bool one : reached) count += one;
    return count == rows * columns;
  }
  void reach(std::int64_t i, std::int64_t j, std::array<bool, 9>& reached) {
    bool& here = reached[std::size_t(j * 3 + i)];
    if (here) return;
    here = true;
    for (std::size_t wall_side = 0; wall_side < 4; ++wall_side)
      if (at(i, j).open[wall_side]) reach(i + ahead_x[wall_side], j + ahead_y[wall_side], reached);
  }

  World& world;
  Rng& rng;
  std::int64_t side, columns, rows;
  std::array<Room, 9> rooms{};
};

}  // namespace penstock::minigrid
