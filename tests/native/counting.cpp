/// An environment that counts its steps, for tests of what the framework does: the reward is the action, the episode
/// terminates at `limit`, and it reports the count always and the action after steps.
#include "penstock/library.hpp"

struct Counting {
  static constexpr penstock::Info info{.id = "Counting-v0"};
  static constexpr penstock::Discrete<5> action{};
  static constexpr auto observation = penstock::BoxOf<double, 1>::filled(0.0, 100.0);

  struct Config {
    std::int64_t limit = 3;
    PENSTOCK_FIELDS(Config, limit)
    [[nodiscard]] const char* problem() const { return limit > 0 ? nullptr : "limit must be > 0"; }
  } config;
  struct State {
    std::int64_t count;
    PENSTOCK_FIELDS(State, count)
  } state;
  struct Report {
    double count, action;
    PENSTOCK_FIELDS(Report, count, action)
  } report;
  static constexpr std::size_t reset_reports = 1;

  void reset(penstock::Rng&) {
    state.count = 0;
    report = {.count = 0.0, .action = 0.0};
  }
  penstock::Step step(std::int64_t action_taken) {
    ++state.count;
    report = {.count = double(state.count), .action = double(action_taken)};
    return {.reward = double(action_taken), .terminated = state.count >= config.limit};
  }
  void observe(std::span<double, 1> out) const { out[0] = double(state.count); }
};

PENSTOCK_LIBRARY(Counting)
