/// Actions of a batch: how one is read, and which are refused before any environment moves.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "penstock/env/environment.hpp"

namespace penstock {

/// Returns the argument of environment `env`'s `step`, out of [environments, *action shape].
template <class Action>
PENSTOCK_HOST_DEVICE typename Action::Argument action_of(const void* actions, std::size_t env) {
  const auto* values = static_cast<const typename Action::Value*>(actions) + env * Action::size;
  if constexpr (is_discrete<Action>) {
    return *values;
  } else {
    return typename Action::Argument(values, Action::size);
  }
}

/// Returns whether all values are surely valid, without a branch per value. Integers: none is above the bitwise or of
/// all, so where that is in range all are; where it is not, the result is false but not conclusive.
template <class Action>
PENSTOCK_HOST_DEVICE bool surely_valid(const typename Action::Value* values, std::size_t count) noexcept {
  if constexpr (is_discrete<Action> || is_multi_discrete<Action>) {
    std::uint64_t together = 0;
    for (std::size_t i = 0; i < count; ++i) together |= static_cast<std::uint64_t>(values[i]);
    return together < static_cast<std::uint64_t>(Action::count);
  } else {
    constexpr std::uint32_t exponent = 0x7f800000;
    bool infinite = false;
    for (std::size_t i = 0; i < count; ++i) infinite |= (std::bit_cast<std::uint32_t>(values[i]) & exponent) == exponent;
    return !infinite;
  }
}

/// Throws std::invalid_argument that names the first environment with an action that it cannot take.
///
/// Args: `rows` actions; `environments[row]` is the environment of each, or `row` itself where it is nullptr.
template <class Action>
void check_actions(const void* actions, std::size_t rows, const std::int32_t* environments = nullptr) {
  const auto* values = static_cast<const typename Action::Value*>(actions);
  if (surely_valid<Action>(values, rows * Action::size)) [[likely]]
    return;
  for (std::size_t i = 0; i < rows * Action::size; ++i) {
    if constexpr (is_discrete<Action> || is_multi_discrete<Action>) {
      if (values[i] >= 0 && values[i] < Action::count) [[likely]]
        continue;
    } else {
      if (std::isfinite(values[i])) [[likely]]
        continue;
    }
    const std::size_t row = i / Action::size;
    const std::string who = std::to_string(environments != nullptr ? static_cast<std::size_t>(environments[row]) : row);
    if constexpr (is_discrete<Action> || is_multi_discrete<Action>)
      throw std::invalid_argument("action " + std::to_string(values[i]) + " of environment " + who +
                                  " is out of range: expected 0 to " + std::to_string(Action::count - 1));
    else
      throw std::invalid_argument("action of environment " + who + " is not finite: got " + std::to_string(values[i]));
  }
}

}  // namespace penstock
