/// A chain of rooms of different sizes, as MiniGrid's MultiRoom lays it, draw for draw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/minigrid/world.hpp"

namespace penstock::minigrid {

class RoomChain {
  struct Room {
    Place top, size, entry;
  };
  struct Chain {
    std::array<Room, 6> rooms{};
    std::size_t count = 0;
  };
  static constexpr std::int64_t smallest = 4, tries = 8;

 public:
  static void lay(World& world, Rng& rng, std::int64_t grid, std::int64_t count, std::int64_t largest) {
    Chain chain;
    while (chain.count < std::size_t(count)) {
      const std::int64_t x = rng.integers(0, grid - 2), y = rng.integers(0, grid - 2);
      Chain attempt;
      add(rng, grid, count, attempt, largest, 2, {x, y});
      if (attempt.count > chain.count) chain = attempt;
    }
    Color previous = grey;
    for (std::size_t i = 0; i < chain.count; ++i) {
      const Room& room = chain.rooms[i];
      world.rectangle(room.top.x, room.top.y, room.size.x, room.size.y);
      if (i == 0) continue;
      previous = i == 1 ? draw_color(rng) : draw_other(rng, previous);
      world.set(room.entry, cell(closed_door, previous));
    }
    world.put_agent(rng, chain.rooms[0].top, chain.rooms[0].size);
    world.put(rng, target_square, chain.rooms[chain.count - 1].top, chain.rooms[chain.count - 1].size);
  }

 private:
  /// A colour other than this one.
  static Color draw_other(Rng& rng, Color than) {
    std::int64_t chosen = rng.integers(0, 5);
    for (const Color color : colors_by_name)
      if (color != than && chosen-- == 0) return color;
    return than;
  }

  /// Adds a room whose side `wall_side` has the entry, and then others behind it; false if there is no space for it.
  static bool add(Rng& rng, std::int64_t grid, std::int64_t left, Chain& chain, std::int64_t largest,
                  std::int64_t wall_side, Place entry) {
    const std::int64_t width = rng.integers(smallest, largest + 1), height = rng.integers(smallest, largest + 1);
    Place top = entry;
    if (chain.count > 0) {
      if (wall_side % 2 == 0) top.y = rng.integers(entry.y - height + 2, entry.y);
      else top.x = rng.integers(entry.x - width + 2, entry.x);
      if (wall_side == 0) top.x = entry.x - width + 1;
      if (wall_side == 1) top.y = entry.y - height + 1;
    }
    if (top.x < 0 || top.y < 0 || top.x + width > grid || top.y + height >= grid) return false;
    for (std::size_t i = 0; i + 1 < chain.count; ++i) {
      const Room& other = chain.rooms[i];
      if (top.x + width >= other.top.x && other.top.x + other.size.x > top.x && top.y + height >= other.top.y &&
          other.top.y + other.size.y > top.y)
        return false;
    }
    chain.rooms[chain.count++] = {top, {width, height}, entry};
    if (left == 1) return true;
    for (std::int64_t tried = 0; tried < tries; ++tried) {
      std::int64_t exit_side = rng.integers(0, 3);
      if (exit_side >= wall_side) ++exit_side;
      Place gap = top;
      if (exit_side % 2 == 0) {
        gap.y += rng.integers(1, height - 1);
        if (exit_side == 0) gap.x += width - 1;
      } else {
        gap.x += rng.integers(1, width - 1);
        if (exit_side == 1) gap.y += height - 1;
      }
      if (add(rng, grid, left - 1, chain, largest, (exit_side + 2) % 4, gap)) break;
    }
    return true;
  }
};

}  // namespace penstock::minigrid
