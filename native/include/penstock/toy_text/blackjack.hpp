/// Blackjack-v1, equal to gymnasium.envs.toy_text.blackjack step for step. The sum, the dealer's card and the usable ace
/// are seen one-hot, one behind the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "penstock/env/canvas.hpp"
#include "penstock/toy_text/tables.hpp"

namespace penstock {

struct Blackjack {
  static constexpr std::size_t sums = 32, cards = 11, aces = 2;
  static constexpr Info info{.id = "toy/Blackjack-v1"};
  static constexpr Discrete<2> action{};
  static constexpr auto observation = Box<sums + cards + aces>::filled(0, 1);

  struct Config {
    bool natural = false, sab = true;
    PENSTOCK_FIELDS(Config, natural, sab)
  } config;

  /// Each hand is the sum with aces as 1, the number of cards, and whether an ace is among them.
  struct State {
    std::int64_t sum, count, dealer_sum, dealer_count, dealer_card;
    bool ace, dealer_ace;
    PENSTOCK_FIELDS(State, sum, count, dealer_sum, dealer_count, dealer_card, ace, dealer_ace)
  } state;

  [[nodiscard]] const char* state_problem() const {
    const bool fits = state.sum >= 0 && state.sum < std::int64_t(sums) && state.dealer_card >= 0 &&
                      state.dealer_card < std::int64_t(cards) && state.dealer_sum >= 0 && state.dealer_sum <= 26 &&
                      state.count >= 0 && state.count < std::int64_t(sums) && state.dealer_count >= 0 &&
                      state.dealer_count < std::int64_t(sums);
    return fits ? nullptr : "has a sum or a count of cards beyond 31, a dealer's sum beyond 26 or card beyond 10";
  }

  PENSTOCK_HOST_DEVICE void reset(Rng& rng) {
    state = {};
    state.dealer_card = deal_dealer(rng);
    deal_dealer(rng);
    deal(rng), deal(rng);
    rng.integers(0, 4);  // the suit that Gymnasium draws, and the picture of a ten
    if (state.dealer_card == 10) rng.integers(0, 3);
  }

  PENSTOCK_HOST_DEVICE Step step(std::int64_t hits, Rng& rng) {
    if (hits != 0) {
      deal(rng);
      const bool bust = best(state.sum, state.ace) > 21;
      return {.reward = bust ? -1.0 : 0.0, .terminated = bust};
    }
    while (best(state.dealer_sum, state.dealer_ace) < 17) deal_dealer(rng);
    const std::int64_t own = score(state.sum, state.ace), dealers = score(state.dealer_sum, state.dealer_ace);
    const bool is_natural = state.count == 2 && state.sum == 11 && state.ace;
    const bool dealer_is = state.dealer_count == 2 && state.dealer_sum == 11 && state.dealer_ace;
    double reward = own > dealers ? 1.0 : own < dealers ? -1.0 : 0.0;
    if (config.sab && is_natural && !dealer_is) reward = 1.0;
    else if (!config.sab && config.natural && is_natural && reward == 1.0) reward = 1.5;
    return {.reward = reward, .terminated = true};
  }

  PENSTOCK_HOST_DEVICE void observe(std::span<float, sums + cards + aces> out) const {
    toy_text::show(best(state.sum, state.ace), out.first<sums>());
    toy_text::show(state.dealer_card, out.subspan<sums, cards>());
    toy_text::show(usable(state.sum, state.ace) ? 1 : 0, out.last<aces>());
  }

  static constexpr FrameSize frame{.height = 96, .width = 256};

  /// Draws what is seen, as bars: above the dealer's card, below one's own sum, 8 pixels a point, with a disc for a usable ace
  /// and a line at 21.
  void draw(Canvas& canvas) const {
    canvas.clear({20, 110, 60});
    canvas.rectangle(4, 16, 8 * double(state.dealer_card), 24, {215, 60, 50});
    canvas.rectangle(4, 56, 8 * double(best(state.sum, state.ace)), 24, {240, 240, 240});
    canvas.rectangle(4 + 8 * 21, 48, 2, 40, {240, 200, 60});
    if (usable(state.sum, state.ace)) canvas.disc(16, 68, 8, {20, 20, 150});
  }

 private:
  PENSTOCK_HOST_DEVICE static bool usable(std::int64_t sum, bool ace) { return ace && sum + 10 <= 21; }
  PENSTOCK_HOST_DEVICE static std::int64_t best(std::int64_t sum, bool ace) {
    return usable(sum, ace) ? sum + 10 : sum;
  }
  PENSTOCK_HOST_DEVICE static std::int64_t score(std::int64_t sum, bool ace) {
    const std::int64_t reached = best(sum, ace);
    return reached > 21 ? 0 : reached;
  }
  /// An ace is 1; ten, jack, queen and king are 10.
  PENSTOCK_HOST_DEVICE static std::int64_t draw_card(Rng& rng) {
    return std::min<std::int64_t>(rng.integers(0, 13) + 1, 10);
  }

  PENSTOCK_HOST_DEVICE void deal(Rng& rng) {
    const std::int64_t card = draw_card(rng);
    state.sum += card, ++state.count, state.ace = state.ace || card == 1;
  }
  PENSTOCK_HOST_DEVICE std::int64_t deal_dealer(Rng& rng) {
    const std::int64_t card = draw_card(rng);
    state.dealer_sum += card, ++state.dealer_count, state.dealer_ace = state.dealer_ace || card == 1;
    return card;
  }
};

}  // namespace penstock
