/// The tasks of MiniGrid that are stepped here: their ids in Gymnasium's registry, their kinds and their sizes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::minigrid {

enum class Layout { empty, door_key, four_rooms, lava_gap, crossing, multi_room, go_to_door, fetch, unlock, unlock_pickup,
                    key_corridor, obstacles };

/// One task. `size` is the grid's side, of tasks made of equal rooms a room's; `count` the rows of rooms, rivers, objects,
/// obstacles or rooms.
struct Task {
  const char* id;
  Layout layout;
  std::int64_t size, max_steps;
  std::int64_t count = 0;
  bool variant = false;  ///< the agent begins anywhere; rivers are walls instead of lava
  std::int64_t largest_room = 0;
};

inline constexpr std::array tasks{
    Task{"MiniGrid-Empty-5x5-v0", Layout::empty, 5, 100},
    Task{"MiniGrid-Empty-6x6-v0", Layout::empty, 6, 144},
    Task{"MiniGrid-Empty-8x8-v0", Layout::empty, 8, 256},
    Task{"MiniGrid-Empty-16x16-v0", Layout::empty, 16, 1024},
    Task{"MiniGrid-Empty-Random-5x5-v0", Layout::empty, 5, 100, 0, true},
    Task{"MiniGrid-Empty-Random-6x6-v0", Layout::empty, 6, 144, 0, true},
    Task{"MiniGrid-DoorKey-5x5-v0", Layout::door_key, 5, 250},
    Task{"MiniGrid-DoorKey-6x6-v0", Layout::door_key, 6, 360},
    Task{"MiniGrid-DoorKey-8x8-v0", Layout::door_key, 8, 640},
    Task{"MiniGrid-DoorKey-16x16-v0", Layout::door_key, 16, 2560},
    Task{"MiniGrid-FourRooms-v0", Layout::four_rooms, 19, 100},
    Task{"MiniGrid-LavaGapS5-v0", Layout::lava_gap, 5, 100},
    Task{"MiniGrid-LavaGapS6-v0", Layout::lava_gap, 6, 144},
    Task{"MiniGrid-LavaGapS7-v0", Layout::lava_gap, 7, 196},
    Task{"MiniGrid-LavaCrossingS9N1-v0", Layout::crossing, 9, 324, 1},
    Task{"MiniGrid-LavaCrossingS9N2-v0", Layout::crossing, 9, 324, 2},
    Task{"MiniGrid-LavaCrossingS9N3-v0", Layout::crossing, 9, 324, 3},
    Task{"MiniGrid-LavaCrossingS11N5-v0", Layout::crossing, 11, 484, 5},
    Task{"MiniGrid-SimpleCrossingS9N1-v0", Layout::crossing, 9, 324, 1, true},
    Task{"MiniGrid-SimpleCrossingS9N2-v0", Layout::crossing, 9, 324, 2, true},
    Task{"MiniGrid-SimpleCrossingS9N3-v0", Layout::crossing, 9, 324, 3, true},
    Task{"MiniGrid-SimpleCrossingS11N5-v0", Layout::crossing, 11, 484, 5, true},
    Task{"MiniGrid-MultiRoom-N2-S4-v0", Layout::multi_room, 25, 40, 2, false, 4},
    Task{"MiniGrid-MultiRoom-N4-S5-v0", Layout::multi_room, 25, 120, 6, false, 5},
    Task{"MiniGrid-MultiRoom-N4-S5-v1", Layout::multi_room, 25, 80, 4, false, 5},
    Task{"MiniGrid-MultiRoom-N6-v0", Layout::multi_room, 25, 120, 6, false, 10},
    Task{"MiniGrid-GoToDoor-5x5-v0", Layout::go_to_door, 5, 100},
    Task{"MiniGrid-GoToDoor-6x6-v0", Layout::go_to_door, 6, 144},
    Task{"MiniGrid-GoToDoor-8x8-v0", Layout::go_to_door, 8, 256},
    Task{"MiniGrid-Fetch-5x5-N2-v0", Layout::fetch, 5, 125, 2},
    Task{"MiniGrid-Fetch-6x6-N2-v0", Layout::fetch, 6, 180, 2},
    Task{"MiniGrid-Fetch-8x8-N3-v0", Layout::fetch, 8, 320, 3},
    Task{"MiniGrid-Unlock-v0", Layout::unlock, 6, 288, 1},
    Task{"MiniGrid-UnlockPickup-v0", Layout::unlock_pickup, 6, 288, 1},
    Task{"MiniGrid-KeyCorridorS3R1-v0", Layout::key_corridor, 3, 270, 1},
    Task{"MiniGrid-KeyCorridorS3R2-v0", Layout::key_corridor, 3, 270, 2},
    Task{"MiniGrid-KeyCorridorS3R3-v0", Layout::key_corridor, 3, 270, 3},
    Task{"MiniGrid-KeyCorridorS4R3-v0", Layout::key_corridor, 4, 480, 3},
    Task{"MiniGrid-KeyCorridorS5R3-v0", Layout::key_corridor, 5, 750, 3},
    Task{"MiniGrid-KeyCorridorS6R3-v0", Layout::key_corridor, 6, 1080, 3},
};

/// Those in which balls move, which take three actions.
inline constexpr std::array moving_tasks{
    Task{"MiniGrid-Dynamic-Obstacles-5x5-v0", Layout::obstacles, 5, 100, 2},
    Task{"MiniGrid-Dynamic-Obstacles-6x6-v0", Layout::obstacles, 6, 144, 3},
    Task{"MiniGrid-Dynamic-Obstacles-8x8-v0", Layout::obstacles, 8, 256, 4},
    Task{"MiniGrid-Dynamic-Obstacles-16x16-v0", Layout::obstacles, 16, 1024, 8},
    Task{"MiniGrid-Dynamic-Obstacles-Random-5x5-v0", Layout::obstacles, 5, 100, 2, true},
    Task{"MiniGrid-Dynamic-Obstacles-Random-6x6-v0", Layout::obstacles, 6, 144, 3, true},
};

constexpr std::int64_t rooms_across(const Task& task) { return task.layout == Layout::key_corridor ? 3 : 2; }
constexpr bool has_rooms(const Task& task) {
  return task.layout == Layout::unlock || task.layout == Layout::unlock_pickup || task.layout == Layout::key_corridor;
}
constexpr std::int64_t width_of(const Task& task) {
  return has_rooms(task) ? (task.size - 1) * rooms_across(task) + 1 : task.size;
}
constexpr std::int64_t height_of(const Task& task) { return has_rooms(task) ? (task.size - 1) * task.count + 1 : task.size; }

/// Returns whether the agent sees through walls.
constexpr bool sees_through(const Task& task) {
  return task.layout == Layout::empty || task.layout == Layout::go_to_door || task.layout == Layout::fetch ||
      task.layout == Layout::obstacles;
}

}  // namespace penstock::minigrid
