/// Makes the grid of each task from the generator, in the order of MiniGrid's draws.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "penstock/minigrid/multi_room.hpp"
#include "penstock/minigrid/rooms.hpp"
#include "penstock/minigrid/tasks.hpp"
#include "penstock/minigrid/world.hpp"

namespace penstock::minigrid {

/// NumPy's `Generator.shuffle` of a list.
template <class T>
void shuffle(Rng& rng, std::span<T> values) {
  for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[std::size_t(rng.interval(i))]);
}

inline void lay_door_key(World& world, Rng& rng, std::int64_t size) {
  world.rectangle(0, 0, size, size);
  world.set({size - 2, size - 2}, target_square);
  const std::int64_t split = rng.integers(2, size - 2);
  world.column(split, 0, size);
  world.put_agent(rng, {0, 0}, {split, size});
  world.set({split, rng.integers(1, size - 2)}, cell(locked_door, yellow));
  world.put(rng, cell(key, yellow), {0, 0}, {split, size});
}

inline void lay_four_rooms(World& world, Rng& rng, std::int64_t size) {
  world.rectangle(0, 0, size, size);
  const std::int64_t room = size / 2;
  for (std::int64_t j = 0; j < 2; ++j)
    for (std::int64_t i = 0; i < 2; ++i) {
      const Place low{i * room, j * room}, high{low.x + room, low.y + room};
      if (i == 0) {
        world.column(high.x, low.y, room);
        world.set({high.x, rng.integers(low.y + 1, high.y)}, nothing);
      }
      if (j == 0) {
        world.row(low.x, high.y, room);
        world.set({rng.integers(low.x + 1, high.x), high.y}, nothing);
      }
    }
  world.put_agent(rng, {0, 0}, {size, size});
  world.put_anywhere(rng, target_square);
}

inline void lay_lava_gap(World& world, Rng& rng, std::int64_t size) {
  world.rectangle(0, 0, size, size);
  world.put_agent({1, 1}, 0);
  world.set({size - 2, size - 2}, target_square);
  const std::int64_t x = rng.integers(2, size - 2), y = rng.integers(1, size - 1);
  world.column(x, 1, size - 2, cell(lava, red));
  world.set({x, y}, nothing);
}

/// Rivers across the grid, and a way through all of them.
inline void lay_crossing(World& world, Rng& rng, const Task& task) {
  const std::int64_t size = task.size;
  world.rectangle(0, 0, size, size);
  world.put_agent({1, 1}, 0);
  world.set({size - 2, size - 2}, target_square);

  struct River {
    bool upright;
    std::int64_t at;
  };
  std::array<River, 2 * largest_side> rivers{};
  std::size_t count = 0;
  for (const bool upright : {true, false})
    for (std::int64_t at = 2; at < size - 2; at += 2) rivers[count++] = {upright, at};
  shuffle(rng, std::span(rivers).first(count));

  // Positions of the rivers with the borders around them, in order.
  std::array<std::int64_t, largest_side> upright{}, level{};
  std::size_t uprights = 1, levels = 1;
  for (std::size_t i = 0; i < std::size_t(task.count); ++i)
    (rivers[i].upright ? upright[uprights++] : level[levels++]) = rivers[i].at;
  std::sort(upright.begin() + 1, upright.begin() + std::ptrdiff_t(uprights));
  std::sort(level.begin() + 1, level.begin() + std::ptrdiff_t(levels));
  upright[uprights] = level[levels] = size - 1;
  const Cell river = task.variant ? stone : cell(lava, red);
  for (std::size_t i = 1; i < levels; ++i) world.row(1, level[i], size - 2, river);
  for (std::size_t i = 1; i < uprights; ++i) world.column(upright[i], 1, size - 2, river);

  std::array<bool, largest_side> crosses_upright{};
  const std::size_t steps = uprights - 1 + levels - 1;
  std::fill_n(crosses_upright.begin(), uprights - 1, true);
  shuffle(rng, std::span(crosses_upright).first(steps));
  std::size_t right = 0, down = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    if (crosses_upright[i]) {
      world.set({upright[right + 1], rng.integers(level[down] + 1, level[down + 1])}, nothing);
      ++right;
    } else {
      world.set({rng.integers(upright[right] + 1, upright[right + 1]), level[down + 1]}, nothing);
      ++down;
    }
  }
}

/// A room smaller than the grid, with a door in each of its sides; where the door is that the task names.
inline std::int64_t lay_go_to_door(World& world, Rng& rng, std::int64_t size) {
  const std::int64_t width = rng.integers(5, size + 1), height = rng.integers(5, size + 1);
  world.rectangle(0, 0, width, height);
  std::array<Place, 4> doors{};
  doors[0] = {rng.integers(2, width - 2), 0};
  doors[1] = {rng.integers(2, width - 2), height - 1};
  doors[2] = {0, rng.integers(2, height - 2)};
  doors[3] = {width - 1, rng.integers(2, height - 2)};
  std::array<Color, 4> colors{};
  for (std::size_t chosen = 0; chosen < 4;) {
    colors[chosen] = draw_color(rng);
    if (std::find(colors.begin(), colors.begin() + std::ptrdiff_t(chosen), colors[chosen]) ==
        colors.begin() + std::ptrdiff_t(chosen))
      ++chosen;
  }
  for (std::size_t i = 0; i < 4; ++i) world.set(doors[i], cell(closed_door, colors[i]));
  world.put_agent(rng, {0, 0}, {width, height});
  return world.index(doors[std::size_t(rng.integers(0, 4))]);
}

/// Keys and balls; the one to fetch.
inline Cell lay_fetch(World& world, Rng& rng, const Task& task) {
  world.rectangle(0, 0, task.size, task.size);
  std::array<Cell, 8> objects{};
  for (std::size_t i = 0; i < std::size_t(task.count); ++i) {
    const Kind kind = rng.integers(0, 2) == 0 ? key : ball;
    objects[i] = cell(kind, draw_color(rng));
    world.put_anywhere(rng, objects[i]);
  }
  world.put_agent(rng, {0, 0}, {task.size, task.size});
  const Cell fetched = objects[std::size_t(rng.integers(0, task.count))];
  rng.integers(0, 5);  // the sentence that says so
  return fetched;
}

/// Two rooms and a locked door: where it is.
inline std::int64_t lay_unlock(World& world, Rng& rng, const Task& task) {
  Rooms rooms(world, rng, task.size, 2, 1);
  if (task.layout == Layout::unlock_pickup) rooms.add(1, 0, Cell(cell(box, draw_color(rng)) | wanted));
  const Color color = draw_color(rng);
  const Place gap = rooms.add_door(0, 0, 0, color, true);
  rooms.add(0, 0, cell(key, color));
  rooms.put_agent(0, 0);
  return world.index(gap);
}

inline void lay_key_corridor(World& world, Rng& rng, const Task& task) {
  Rooms rooms(world, rng, task.size, 3, task.count);
  for (std::int64_t j = 1; j < task.count; ++j) rooms.remove_wall_above(1, j);
  const std::int64_t behind = rng.integers(0, task.count);
  const Color color = draw_color(rng);
  rooms.add_door(2, behind, 2, color, true);
  rooms.add(2, behind, Cell(cell(ball, draw_color(rng)) | wanted));
  rooms.add(0, rng.integers(0, task.count), cell(key, color));
  rooms.put_agent(1, task.count / 2);
  rooms.connect_all();
}

inline void lay_empty(World& world, Rng& rng, const Task& task) {
  world.rectangle(0, 0, task.size, task.size);
  world.set({task.size - 2, task.size - 2}, target_square);
  if (task.variant) world.put_agent(rng, {0, 0}, {task.size, task.size});
  else world.put_agent({1, 1}, 0);
}

}  // namespace penstock::minigrid
