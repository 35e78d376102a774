/// Actions of a batch: how one is read, and which are refused before any environment moves.
#pragma once

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "penstock/env.hpp"

namespace penstock {

/// What `step` of environment `env` is given, out of [environments, *action shape].
template <class Action>
typename Action::Argument action_of(const void* actions, std::size_t env) {
  const auto* values = static_cast<const typename Action::Value*>(actions) + env * Action::size;
  if constexpr (is_discrete<Action>) {
    return *values;
  } else {
    return typename Action::Argument(values, Action::size);
  }
}

/// Throws std::invalid_argument that names the first environment with an action that it cannot take.
///
/// Args: `rows` actions; `environments[row]` is whose they are, or row itself where it is nullptr.
template <class Action>
void check_actions(const void* actions, std::size_t rows, const std::int32_t* environments = nullptr) {
  const auto* values = static_cast<const typename Action::Value*>(actions);
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
