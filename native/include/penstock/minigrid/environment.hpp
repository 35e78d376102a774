/// MiniGrid's tasks, equal to the package `minigrid` with its ImgObsWrapper seed for seed: grids, views, rewards and ends.
///
/// One type steps every task: an id is the number of a variant, so that all share one pool's machine code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "penstock/env/variants.hpp"
#include "penstock/minigrid/layouts.hpp"
#include "penstock/minigrid/painting.hpp"

namespace penstock::minigrid {

enum Action : std::int64_t { turn_left, turn_right, forward, pick_up, drop, toggle, done };

/// An environment whose tasks are those of one table, with this many of the actions.
template <const auto& Tasks, std::int64_t Actions>
struct Environment {
  static constexpr Info info{.id = Tasks[0].id};
  static constexpr Discrete<Actions> action{};
  static constexpr auto observation = BoxOf<std::uint8_t, view, view, 3>::filled(0, 255);

  struct Config {
    std::int64_t max_steps = Tasks[0].max_steps;
    PENSTOCK_FIELDS(Config, max_steps)
    [[nodiscard]] const char* problem() const { return max_steps >= 1 ? nullptr : "max_steps must be at least 1"; }
  } config;
  static constexpr const char* step_limit = "max_steps";

  using State = minigrid::State;
  State state;

  [[nodiscard]] const char* state_problem() const {
    const Task& task = current();
    if (state.width != width_of(task) || state.height != height_of(task)) return "has a grid of another size";
    const auto inside = [&](std::int64_t x, std::int64_t y) {
      return x >= 0 && x < state.width && y >= 0 && y < state.height;
    };
    bool fits = inside(state.x, state.y) && state.direction >= 0 && state.direction < 4 && state.carried >= 0 &&
                state.carried < 256;
    for (const std::int64_t place : state.obstacles) fits = fits && inside(place % state.width, place / state.width);
    if (!fits) return "has an agent or an obstacle outside of its grid, or no such direction";
    fits = exists(Cell(state.carried));
    for (std::int64_t y = 0; y < state.height; ++y)
      for (std::int64_t x = 0; x < state.width; ++x) fits = fits && exists(World::at(state, x, y));
    return fits ? nullptr : "has a cell, or carries a thing, of no kind or colour that there is";
  }

  static auto variants() {
    std::array<Variant<Config>, Tasks.size()> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {{.id = Tasks[i].id}, {.max_steps = Tasks[i].max_steps}};
    return all;
  }
  std::int64_t variant = 0;

  void reset(Rng& rng) {
    const Task& task = current();
    World world(state);
    world.clear(width_of(task), height_of(task));
    switch (task.layout) {
      case Layout::empty: lay_empty(world, rng, task); break;
      case Layout::door_key: lay_door_key(world, rng, task.size); break;
      case Layout::four_rooms: lay_four_rooms(world, rng, task.size); break;
      case Layout::lava_gap: lay_lava_gap(world, rng, task.size); break;
      case Layout::crossing: lay_crossing(world, rng, task); break;
      case Layout::multi_room: RoomChain::lay(world, rng, task.size, task.count, task.largest_room); break;
      case Layout::go_to_door: state.target = lay_go_to_door(world, rng, task.size); break;
      case Layout::fetch: state.target = lay_fetch(world, rng, task); break;
      case Layout::unlock:
      case Layout::unlock_pickup: state.target = lay_unlock(world, rng, task); break;
      case Layout::key_corridor: lay_key_corridor(world, rng, task); break;
      case Layout::obstacles:
        lay_empty(world, rng, task);
        for (std::size_t i = 0; i < std::size_t(task.count); ++i)
          state.obstacles[i] = world.index(world.put(rng, cell(ball, blue), {0, 0}, {state.width, state.height}, 100));
        break;
    }
  }

  Step step(std::int64_t chosen, Rng& rng) {
    const Task& task = current();
    World world(state);
    bool collides = false;
    if (task.layout == Layout::obstacles) {
      const Kind front = kind_of(world.at(world.ahead()));
      collides = chosen == forward && front != empty && front != goal;
      for (std::size_t i = 0; i < std::size_t(task.count); ++i) move_obstacle(world, rng, state.obstacles[i]);
    }
    ++state.steps;
    Step result = act(world, chosen);
    result.truncated = state.steps >= config.max_steps;
    if (collides) result.reward = -1.0, result.terminated = true;
    return ending(task, world, chosen, result);
  }

  void observe(std::span<std::uint8_t, view * view * 3> out) const { see(state, sees_through(current()), out); }

  static constexpr FrameSize frame{.height = 256, .width = 256};

  void draw(Canvas& canvas) const { paint(state, canvas); }

 private:
  [[nodiscard]] const Task& current() const { return Tasks[std::size_t(variant)]; }
  [[nodiscard]] double success() const { return 1 - 0.9 * (double(state.steps) / double(config.max_steps)); }

  /// To a cell around it, or nowhere after too many tries.
  static void move_obstacle(World& world, Rng& rng, std::int64_t& obstacle) {
    const Place old = world.place(obstacle);
    Place found{};
    if (!world.find(rng, {old.x - 1, old.y - 1}, {3, 3}, 100, [](Place) { return false; }, found)) return;
    world.set(found, world.at(old));
    world.set(old, nothing);
    obstacle = world.index(found);
  }

  /// Does what an action does in every task.
  Step act(World& world, std::int64_t chosen) {
    const Place ahead = world.ahead();
    const Cell front = world.at(ahead);
    const Kind kind = kind_of(front);
    switch (chosen) {
      case turn_left: state.direction = (state.direction + 3) % 4; break;
      case turn_right: state.direction = (state.direction + 1) % 4; break;
      case forward:
        if (can_be_entered(front)) state.x = ahead.x, state.y = ahead.y;
        if (kind == goal) return {.reward = success(), .terminated = true};
        if (kind == lava) return {.terminated = true};
        break;
      case pick_up:
        if (can_be_carried(front) && state.carried == 0) state.carried = front, world.set(ahead, nothing);
        break;
      case drop:
        if (front == nothing && state.carried != 0) world.set(ahead, Cell(state.carried)), state.carried = 0;
        break;
      case toggle:
        if (kind == box) world.set(ahead, nothing);
        else if (kind == door) world.set(ahead, cell(closed_door, color_of(front)));
        else if (kind == closed_door || (kind == locked_door && (state.carried & ~wanted) == cell(key, color_of(front))))
          world.set(ahead, cell(door, color_of(front)));
        break;
      default: break;
    }
    return {};
  }

  /// Adds the rewards and ends of the task.
  Step ending(const Task& task, const World& world, std::int64_t chosen, Step result) const {
    switch (task.layout) {
      case Layout::unlock:
        if (chosen == toggle && kind_of(world.at(world.place(state.target))) == door)
          result.reward = success(), result.terminated = true;
        break;
      case Layout::unlock_pickup:
      case Layout::key_corridor:
        if (chosen == pick_up && (state.carried & wanted) != 0) result.reward = success(), result.terminated = true;
        break;
      case Layout::go_to_door:
        if (chosen == toggle || chosen == done) result.terminated = true;
        if (chosen == done) {
          const Place target = world.place(state.target);
          const std::int64_t x = std::abs(state.x - target.x), y = std::abs(state.y - target.y);
          if ((x == 0 && y == 1) || (y == 0 && x == 1)) result.reward = success();
        }
        break;
      case Layout::fetch:
        if (state.carried != 0) result = {state.carried == state.target ? success() : 0.0, true, result.truncated};
        break;
      default: break;
    }
    return result;
  }
};

}  // namespace penstock::minigrid

namespace penstock {

using MiniGrid = minigrid::Environment<minigrid::tasks, 7>;
using MiniGridObstacles = minigrid::Environment<minigrid::moving_tasks, 3>;

}  // namespace penstock
