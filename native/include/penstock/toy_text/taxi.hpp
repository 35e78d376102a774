/// Taxi-v4, equal to gymnasium.envs.toy_text.taxi step for step. The state is seen one-hot; under MaskedTaxi-v4 behind the
/// mask of actions that change it, which Gymnasium gives among the infos.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "penstock/toy_text/tables.hpp"

namespace penstock::toy_text {

struct TaxiRules {
  static constexpr std::int64_t side = 5, in_taxi = 4;
  static constexpr std::size_t states = 500;
  static constexpr Discrete<6> action{};
  static constexpr auto observation = Box<states>::filled(0, 1);

  struct Config {
    bool is_rainy = false, fickle_passenger = false;
    double rainy_probability = 0.8, fickle_probability = 0.3;
    PENSTOCK_FIELDS(Config, is_rainy, fickle_passenger, rainy_probability, fickle_probability)
    [[nodiscard]] const char* problem() const {
      return rainy_probability >= 0 && rainy_probability <= 1 && fickle_probability >= 0 && fickle_probability <= 1
          ? nullptr
          : "rainy_probability and fickle_probability must be between 0 and 1";
    }
  } config;

  struct State {
    std::int64_t row, column, passenger, destination;
    bool may_change_mind;
    PENSTOCK_FIELDS(State, row, column, passenger, destination, may_change_mind)
  } state;

  using Report = toy_text::Report;
  Report report;
  static constexpr std::size_t reset_reports = 1;

  void reset(Rng& rng) {
    const std::size_t drawn = draw(beginnings, rng);
    state = {.row = std::int64_t(drawn) / 100, .column = std::int64_t(drawn) / 20 % 5,
             .passenger = std::int64_t(drawn) / 4 % 5, .destination = std::int64_t(drawn) % 4, .may_change_mind = false};
    state.may_change_mind = config.fickle_passenger && rng.random() < config.fickle_probability;
    report.prob = 1.0;
  }

  /// South, north, east, west, pick up, put down.
  Step step(std::int64_t chosen, Rng& rng) {
    const State before = state;
    Step result{.reward = -1.0};
    report.prob = 1.0;
    if (chosen >= 4) {
      rng.random();
      if (chosen == 4) pick_up(result);
      else put_down(result);
    } else if (const Way ahead = ways[std::size_t(chosen)]; !config.is_rainy) {
      rng.random();
      move(ahead);
    } else {
      // Where the way ahead is closed, all three outcomes are the same, and drawn all the same.
      const double aside = (1.0 - config.rainy_probability) / 2.0;
      const std::array probabilities{config.rainy_probability, aside, aside};
      const std::size_t drawn = draw(probabilities, rng);
      report.prob = probabilities[drawn];
      // To the left of a way (down, right) is (-right, down).
      const Way left{-ahead.right, ahead.down};
      if (open(ahead)) move(drawn == 0 ? ahead : drawn == 1 ? left : Way{-left.down, -left.right});
    }
    if (state.may_change_mind && before.passenger == in_taxi && (state.row != before.row || state.column != before.column)) {
      state.may_change_mind = false;
      const std::int64_t other = rng.integers(0, 3);
      state.destination = other + (other >= before.destination ? 1 : 0);
    }
    return result;
  }

  void observe(std::span<float, states> out) const {
    show(((state.row * 5 + state.column) * 5 + state.passenger) * 4 + state.destination, out);
  }

 protected:
  struct Way {
    std::int64_t down, right;
  };
  static constexpr std::array<Way, 4> ways{{{1, 0}, {-1, 0}, {0, 1}, {0, -1}}};
  static constexpr std::array<std::int64_t, 4> stop_row{0, 0, 4, 4}, stop_column{0, 4, 0, 3};

  /// States in which the passenger waits and wants to go elsewhere, all equally likely.
  static constexpr auto beginnings = [] {
    std::array<double, states> all{};
    for (std::size_t i = 0; i < states; ++i)
      if (i / 4 % 5 < 4 && i / 4 % 5 != i % 4) all[i] = 1.0 / 300;
    return all;
  }();

  [[nodiscard]] bool open(Way way) const {
    const std::int64_t row = state.row + way.down, column = state.column + way.right;
    if (row < 0 || row >= side || column < 0 || column >= side) return false;
    return way.right == 0 || gaps[std::size_t(state.row)][std::size_t(std::min(column, state.column))] == ':';
  }
  void move(Way way) {
    if (open(way)) state.row += way.down, state.column += way.right;
  }

  /// The stop where the taxi is, or 4.
  [[nodiscard]] std::int64_t stop() const {
    for (std::size_t i = 0; i < stop_row.size(); ++i)
      if (state.row == stop_row[i] && state.column == stop_column[i]) return std::int64_t(i);
    return 4;
  }

  void pick_up(Step& result) {
    if (state.passenger != in_taxi && stop() == state.passenger) state.passenger = in_taxi;
    else result.reward = -10.0;
  }
  void put_down(Step& result) {
    const std::int64_t here = stop();
    if (state.passenger != in_taxi || here == 4) {
      result.reward = -10.0;
      return;
    }
    state.passenger = here;
    if (here == state.destination) result = {.reward = 20.0, .terminated = true};
  }

  /// Between the columns of each row: ':' is open.
  static constexpr std::array<std::string_view, 5> gaps{":|::", ":|::", "::::", "|:|:", "|:|:"};
};

}  // namespace penstock::toy_text

namespace penstock {

struct Taxi : toy_text::TaxiRules {
  static constexpr Info info{.id = "toy/Taxi-v4", .max_episode_steps = 200, .reward_threshold = 8.0};
};

struct MaskedTaxi : toy_text::TaxiRules {
  static constexpr Info info{.id = "toy/MaskedTaxi-v4", .max_episode_steps = 200, .reward_threshold = 8.0};

  void action_mask(std::span<bool, 6> out) const {
    for (std::size_t i = 0; i < ways.size(); ++i) out[i] = open(ways[i]);
    out[4] = state.passenger != in_taxi && stop() == state.passenger;
    out[5] = state.passenger == in_taxi && stop() != 4;
  }
};

}  // namespace penstock
