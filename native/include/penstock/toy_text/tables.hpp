/// Parts that Gymnasium's toy text has in common: draws from a table of probabilities, and a state seen as one of its choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/env.hpp"

namespace penstock::toy_text {

/// Gymnasium's `categorical_sample`: the first place at which the sum exceeds a draw, 0 if it never does.
PENSTOCK_HOST_DEVICE inline std::size_t choose(std::span<const double> probabilities, Rng& rng) {
  const double drawn = rng.random();
  double sum = 0.0;
  for (std::size_t i = 0; i < probabilities.size(); ++i)
    if ((sum += probabilities[i]) > drawn) return i;
  return 0;
}

/// Writes 1 for the choice and 0 for all others, as Gymnasium flattens a Discrete.
PENSTOCK_HOST_DEVICE inline void show(std::int64_t choice, std::span<float> out) {
  for (float& value : out) value = 0.0f;
  out[std::size_t(choice)] = 1.0f;
}

/// The probability of what happened, which Gymnasium gives among the infos.
struct Report {
  double prob = 1.0;
  PENSTOCK_FIELDS(Report, prob)
};

}  // namespace penstock::toy_text
