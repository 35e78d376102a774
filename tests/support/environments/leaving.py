"""Environments of two agents: the second leaves while the first goes on, at a random step or where it chooses to."""

LEAVING = """#include <penstock/library.hpp>
using namespace penstock;
// Agents are shown a number and paid for choosing it; the second observes `junk` after it has left.
struct Leaving {
  static constexpr Info info{.id = "Leaving-v0", .max_episode_steps = 9};
  static constexpr std::size_t agents = 2;
  static constexpr MultiDiscrete<3, agents> action{};
  static constexpr auto observation = Box<agents, 3>::filled(-1e6f, 1e6f);
  struct Config {
    double junk = 0.0;
    PENSTOCK_FIELDS(Config, junk)
  } config;
  struct State {
    std::array<std::int64_t, agents> shown;
    std::int64_t left, over;
    PENSTOCK_FIELDS(State, shown, left, over)
  } state;
  void show(Rng& rng) { state.shown = {rng.integers(0, 3), rng.integers(0, 3)}; }
  void reset(Rng& rng) {
    show(rng);
    state.left = rng.integers(1, 12);
    state.over = rng.integers(4, 20);
  }
  TeamStep<agents> step(std::span<const std::int64_t, agents> chosen, Rng& rng) {
    TeamStep<agents> result;
    for (std::size_t agent = 0; agent < agents; ++agent)
      result.rewards[agent] = is_there(agent) && chosen[agent] == state.shown[agent] ? 1.0 : 0.0;
    if (state.left > 0) --state.left;
    result.terminated = --state.over == 0;
    show(rng);
    return result;
  }
  bool is_there(std::size_t agent) const { return agent == 0 || state.left > 0; }
  void action_mask(std::span<bool, 3 * agents> out) const {
    for (std::size_t place = 0; place < out.size(); ++place) out[place] = is_there(place / 3);
  }
  void observe(std::span<float, 3 * agents> out) const {
    for (std::size_t place = 0; place < out.size(); ++place) {
      const std::size_t agent = place / 3;
      const float own = state.shown[agent] == std::int64_t(place % 3) ? 1.0f : 0.0f;
      out[place] = is_there(agent) ? own : float(config.junk);
    }
  }
};
PENSTOCK_LIBRARY(Leaving)
"""
"""A header: `Leaving-v0`."""

DESERTING = """#include <penstock/library.hpp>
using namespace penstock;
// Four pieces of work, of which every agent that is there does one a step; a step costs the team 1. The second agent
// may leave (choice 1), and the first has to do the rest alone.
struct Deserting {
  static constexpr Info info{.id = "Deserting-v0"};
  static constexpr std::size_t agents = 2;
  static constexpr MultiDiscrete<2, agents> action{};
  static constexpr auto observation = Box<agents, 1>::filled(0.0f, 4.0f);
  struct Config {
    PENSTOCK_FIELDS(Config)
  } config;
  struct State {
    std::int64_t work;
    bool left;
    PENSTOCK_FIELDS(State, work, left)
  } state;
  void reset(Rng&) { state = {4, false}; }
  TeamStep<agents> step(std::span<const std::int64_t, agents> chosen) {
    state.left = state.left || chosen[1] == 1;
    state.work -= state.left ? 1 : 2;
    return {.rewards = {-1.0, -1.0}, .terminated = state.work <= 0};
  }
  void action_mask(std::span<bool, 2 * agents> out) const {
    out[0] = true, out[1] = false, out[2] = out[3] = !state.left;
  }
  void observe(std::span<float, agents> out) const { out[0] = out[1] = float(state.work); }
};
PENSTOCK_LIBRARY(Deserting)
"""
"""A header: `Deserting-v0`."""
