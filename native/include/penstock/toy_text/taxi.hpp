/// Taxi-v4, equal to gymnasium.envs.toy_text.taxi step for step. The state is seen one-hot; the mask of actions that change
/// it is reported, as by Gymnasium, and under MaskedTaxi-v4 it also stands in front of the state.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "penstock/toy_text/painting.hpp"
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

  [[nodiscard]] const char* state_problem() const {
    const auto below = [](std::int64_t value, std::int64_t limit) { return value >= 0 && value < limit; };
    const bool fits = below(state.row, side) && below(state.column, side) && below(state.passenger, in_taxi + 1) &&
                      below(state.destination, in_taxi);
    return fits ? nullptr : "has a row or column beyond 4, a passenger beyond 4 or a destination beyond 3";
  }

  struct Report {
    double prob = 1.0;  ///< probability of what happened
    std::array<bool, 6> action_mask{};
    PENSTOCK_FIELDS(Report, prob, action_mask)
  } report;
  static constexpr std::size_t reset_reports = 2;

  void reset(Rng& rng) {
    const std::size_t drawn = choose(beginnings, rng);
    state = {.row = std::int64_t(drawn) / 100, .column = std::int64_t(drawn) / 20 % 5,
             .passenger = std::int64_t(drawn) / 4 % 5, .destination = std::int64_t(drawn) % 4, .may_change_mind = false};
    state.may_change_mind = config.fickle_passenger && rng.random() < config.fickle_probability;
    report.prob = 1.0;
    report.action_mask = useful();
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
      const std::size_t drawn = choose(probabilities, rng);
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
    report.action_mask = useful();
    return result;
  }

  void observe(std::span<float, states> out) const {
    show(((state.row * 5 + state.column) * 5 + state.passenger) * 4 + state.destination, out);
  }

  static constexpr FrameSize frame = picture;

  /// Stops have their colours: the destination a frame of its colour, the passenger a blue disc, the taxi a yellow box.
  void draw(Canvas& canvas) const {
    constexpr std::array<Rgb, 4> colors{{{215, 60, 50}, {60, 170, 80}, {235, 215, 90}, {60, 100, 220}}};
    constexpr Rgb street{225, 225, 225}, passenger_color{20, 20, 150};
    Board board(canvas, side, side);
    for (std::int64_t row = 0; row < side; ++row)
      for (std::int64_t column = 0; column < side; ++column) board.square(row, column, street);
    for (std::size_t i = 0; i < colors.size(); ++i) {
      board.box(stop_row[i], stop_column[i], 0.9, colors[i]);
      if (std::int64_t(i) == state.destination) board.box(stop_row[i], stop_column[i], 0.7, street);
    }
    for (std::int64_t row = 0; row < side; ++row)
      for (std::int64_t column = 0; column + 1 < side; ++column)
        if (gaps[std::size_t(row)][std::size_t(column)] != ':') board.wall(row, column, {30, 30, 30});
    board.box(state.row, state.column, 0.5, {240, 180, 0});
    const auto waits = std::size_t(state.passenger);
    if (state.passenger == in_taxi) board.disc(state.row, state.column, 0.3, passenger_color);
    else board.disc(stop_row[waits], stop_column[waits], 0.3, passenger_color);
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

  /// Actions that change the state.
  [[nodiscard]] std::array<bool, 6> useful() const {
    std::array<bool, 6> mask{};
    for (std::size_t i = 0; i < ways.size(); ++i) mask[i] = open(ways[i]);
    mask[4] = state.passenger != in_taxi && stop() == state.passenger;
    mask[5] = state.passenger == in_taxi && stop() != 4;
    return mask;
  }

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
    const std::array<bool, 6> mask = useful();
    std::copy(mask.begin(), mask.end(), out.begin());
  }
};

}  // namespace penstock
