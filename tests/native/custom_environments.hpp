// Environments that test_load.py loads: what a contract allows beside what the built-in ones use.
#include <stdexcept>

#include <penstock/library.hpp>

using namespace penstock;

/// Two agents on a line, each moved by its own action and paid by its own place.
struct Pair {
  static constexpr Info info{.id = "Pair-v0", .max_episode_steps = 5};
  static constexpr std::size_t agents = 2;
  static constexpr MultiDiscrete<3, agents> action{};
  static constexpr auto observation = BoxOf<double, 2, 2>::filled(-100.0, 100.0);
  struct Config {
    std::int64_t stride = 1;
    bool mirrored = false;
    PENSTOCK_FIELDS(Config, stride, mirrored)
  } config;
  struct State {
    std::array<double, 2> place;
    std::array<std::int64_t, 2> moves;
    bool begun;
    PENSTOCK_FIELDS(State, place, moves, begun)
  } state;
  void reset(Rng& rng) { state = {{rng.random(), rng.random()}, {0, 0}, false}; }
  TeamStep<agents> step(std::span<const std::int64_t, agents> action) {
    TeamStep<agents> result;
    for (std::size_t agent = 0; agent < agents; ++agent) {
      state.place[agent] += double(config.stride * (action[agent] - 1));
      ++state.moves[agent];
      result.rewards[agent] = config.mirrored ? -state.place[agent] : state.place[agent];
    }
    state.begun = true;
    return result;
  }
  void observe(std::span<double, 4> out) const {
    for (std::size_t agent = 0; agent < agents; ++agent) {
      out[2 * agent] = state.place[agent];
      out[2 * agent + 1] = double(state.moves[agent]);
    }
  }
};

/// A picture of 4 x 4 bytes with one bright pixel that wanders; it has nothing to configure.
struct Pixel {
  static constexpr Info info{.id = "Pixel-v0"};
  static constexpr Discrete<4> action{};
  static constexpr auto observation = BoxOf<std::uint8_t, 4, 4>::filled(0, 255);
  struct Config {
    PENSTOCK_FIELDS(Config)
  } config;
  struct State {
    std::int64_t at;
    PENSTOCK_FIELDS(State, at)
  } state;
  void reset(Rng& rng) { state.at = std::int64_t(rng.random() * 16); }
  Step step(std::int64_t turn) {
    state.at = (state.at + turn) % 16;
    return {.reward = 1.0, .terminated = state.at == 15};
  }
  void observe(std::span<std::uint8_t, 16> out) const {
    for (std::int64_t i = 0; i < 16; ++i) out[std::size_t(i)] = i == state.at ? 255 : 0;
  }
};

/// Throws when its action is above 0.5, and in a reset after an action above 0 if it is `brittle`.
struct Fragile {
  static constexpr Info info{.id = "Fragile-v0"};
  static constexpr auto action = Box<1>::symmetric({1.0});
  static constexpr auto observation = Box<1>::symmetric({1.0});
  struct Config {
    bool brittle = false;
    PENSTOCK_FIELDS(Config, brittle)
  } config;
  struct State {
    double last;
    PENSTOCK_FIELDS(State, last)
  } state;
  void reset(Rng&) {
    if (config.brittle && state.last > 0.0) {
      state.last = -1.0;
      throw std::runtime_error("broken");
    }
    state.last = 0.0;
  }
  Step step(std::span<const float, 1> push) {
    if (push[0] > 0.5f) throw std::runtime_error("pushed too hard");
    state.last = double(push[0]);
    return {.reward = -1.0};
  }
  void observe(std::span<float, 1> out) const { out[0] = float(state.last); }
};

PENSTOCK_LIBRARY(Pair, Pixel, Fragile)
