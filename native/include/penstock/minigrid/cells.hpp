/// A cell of MiniGrid's grid in one byte, and the three numbers that the agent sees of it.
#pragma once

#include <array>
#include <cstdint>

namespace penstock::minigrid {

/// Kinds of cells. The first ten are MiniGrid's numbers; a door that is closed or locked is a kind of its own here.
enum Kind : std::uint8_t { unseen, empty, wall, floor_tile, door, key, ball, box, goal, lava, closed_door, locked_door };

enum Color : std::uint8_t { red, green, blue, purple, yellow, grey };

/// MiniGrid's colours in the order from which it draws, that of their names.
inline constexpr std::array<Color, 6> colors_by_name{blue, green, grey, purple, red, yellow};

/// A kind, a colour (4 bits up) and whether it is the object of the task (the highest bit).
using Cell = std::uint8_t;
inline constexpr Cell wanted = 0x80;

constexpr Cell cell(Kind kind, Color color = red) { return Cell(kind | (color << 4)); }
constexpr Kind kind_of(Cell c) { return Kind(c & 15); }
constexpr Color color_of(Cell c) { return Color((c >> 4) & 7); }

/// Returns whether there is such a kind, and such a colour.
constexpr bool exists(Cell c) { return (c & 15) <= locked_door && color_of(c) <= grey; }

inline constexpr Cell nothing = cell(empty), stone = cell(wall, grey), target_square = cell(goal, green);

constexpr bool can_be_entered(Cell c) {
  const Kind kind = kind_of(c);
  return kind == empty || kind == goal || kind == lava || kind == door || kind == floor_tile;
}
constexpr bool can_be_carried(Cell c) { return kind_of(c) == key || kind_of(c) == ball || kind_of(c) == box; }
constexpr bool hides_what_is_behind(Cell c) {
  const Kind kind = kind_of(c);
  return kind == wall || kind == closed_door || kind == locked_door;
}

/// MiniGrid's kind, colour and state of each cell; the state is 0, of a closed door 1, of a locked one 2.
inline constexpr auto seen_as = [] {
  std::array<std::array<std::uint8_t, 3>, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    const auto kind = kind_of(Cell(byte));
    const bool shut = kind == closed_door || kind == locked_door;
    table[byte] = {std::uint8_t(shut ? door : kind), std::uint8_t(color_of(Cell(byte))),
                   std::uint8_t(shut ? kind - closed_door + 1 : 0)};
  }
  return table;
}();

}  // namespace penstock::minigrid
