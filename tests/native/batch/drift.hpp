// An environment for batches: two agents, float64 observations, arrays of every type, random steps, and one that fails.
#include <penstock/library.hpp>

struct Drift {
  static constexpr penstock::Info info{.id = "Drift-v0", .max_episode_steps = 25};
  static constexpr std::size_t agents = 2;
  static constexpr penstock::MultiDiscrete<3, agents> action{};
  static constexpr auto observation = penstock::BoxOf<double, agents, 3>::filled(-1e6, 1e6);

  struct Config {
    bool mirrored = false;
    double wind = 0.5;
    std::int64_t stride = 1;
    PENSTOCK_FIELDS(Config, mirrored, wind, stride)
  } config;

  struct State {
    bool begun;
    std::array<double, agents> place;
    std::array<std::int64_t, agents> moves;
    std::array<bool, agents> away;
    double gust;
    PENSTOCK_FIELDS(State, begun, place, moves, away, gust)
  } state;

  PENSTOCK_HOST_DEVICE void reset(penstock::Rng& rng) {
    state = {};
    for (double& place : state.place) place = rng.standard_normal();
  }

  PENSTOCK_HOST_DEVICE penstock::TeamStep<agents> step(std::span<const std::int64_t, agents> chosen, penstock::Rng& rng) {
    state.begun = true;
    state.gust = rng.normal(0.0, config.wind);
    if (!(std::abs(state.gust) < 50.0)) PENSTOCK_FAIL("the gust was " + std::to_string(state.gust));
    penstock::TeamStep<agents> result;
    for (std::size_t agent = 0; agent < agents; ++agent) {
      state.place[agent] += double(config.stride * (chosen[agent] - 1)) + state.gust;
      state.moves[agent] += chosen[agent] != 1;
      state.away[agent] = std::abs(state.place[agent]) > 4.0;
      result.rewards[agent] = (config.mirrored ? -1.0 : 1.0) * std::exp(-std::abs(state.place[agent]));
    }
    result.terminated = state.away[0] && state.away[1];
    return result;
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<double, agents * 3> out) const {
    for (std::size_t agent = 0; agent < agents; ++agent) {
      out[3 * agent] = state.place[agent];
      out[3 * agent + 1] = double(state.moves[agent]);
      out[3 * agent + 2] = state.away[agent] ? 1.0 : 0.0;
    }
  }
};

PENSTOCK_LIBRARY(Drift)
