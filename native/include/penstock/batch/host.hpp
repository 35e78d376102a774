/// The kernels of a batch for the host's memory: a loop in the caller's thread.
#pragma once

#include <exception>
#include <string>

#include "penstock/batch/kernels.hpp"

namespace penstock {

/// Returns the message of what is being caught, an environment's failure. It is valid until the thread's next failure.
[[gnu::cold]] inline const char* failure_of(const char* id, std::size_t env) {
  thread_local std::string failure;
  failure = "environment " + std::to_string(env) + " of " + id + " failed: ";
  try {
    throw;
  } catch (const std::exception& error) {
    failure += error.what();
  } catch (...) {
    failure += "it threw something that is not a std::exception";
  }
  return failure.c_str();
}

/// Calls `body(environment)` for all, and returns the first failure, or nullptr. An environment that throws stays as it
/// was; the others are stepped.
template <Batchable E, class Body>
const char* each_on_host(std::size_t environments, Body&& body) {
  const char* failure = nullptr;
  for (std::size_t env = 0; env < environments; ++env) {
    try {
      body(env);
    } catch (...) {
      if (failure == nullptr) failure = failure_of(E::info.id, env);
    }
  }
  return failure;
}

/// Returns the reason why an environment cannot take its action, or nullptr if all can; nothing has moved then.
template <class Action>
const char* refuse_actions(const void* actions, std::size_t environments) {
  thread_local std::string refusal;
  try {
    check_actions<Action>(actions, environments);
    return nullptr;
  } catch (const std::exception& error) {
    refusal = error.what();
    return refusal.c_str();
  }
}

template <Batchable E>
const BatchKernels* host_kernels() {
  static const std::string layout = batch_layout<E>();
  static const BatchKernels kernels{
      .layout = layout.c_str(),
      .step = [](const BatchArrays* batch, const void* actions, const BatchStep* out, void*) -> const char* {
        if (const char* refusal = refuse_actions<ActionSpace<E>>(actions, batch->environments)) return refusal;
        return each_on_host<E>(batch->environments,
                               [&](std::size_t env) { step_environment<E>(*batch, actions, *out, env); });
      },
      .step_round = [](const BatchArrays* batch, const void* actions, const BatchRow* out, void*) -> const char* {
        if (const char* refusal = refuse_actions<ActionSpace<E>>(actions, batch->environments)) return refusal;
        return each_on_host<E>(batch->environments,
                               [&](std::size_t env) { step_round_environment<E>(*batch, actions, *out, env); });
      },
      .begin = [](const BatchArrays* batch, const bool* chosen, void* observation, void*) -> const char* {
        return each_on_host<E>(batch->environments, [&](std::size_t env) {
          if (chosen[env]) begin_environment<E>(*batch, observation, env);
        });
      },
      .observe = [](const BatchArrays* batch, void* observation, void*) -> const char* {
        return each_on_host<E>(batch->environments,
                               [&](std::size_t env) { observe_environment<E>(*batch, observation, env); });
      },
  };
  return &kernels;
}

}  // namespace penstock
