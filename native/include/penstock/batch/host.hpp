/// The kernels of a batch for the host's memory: a loop in the caller's thread.
#pragma once

#include <exception>
#include <string>

#include "penstock/batch/kernels.hpp"

namespace penstock {

/// Calls `body(environment)` for all, and returns the first failure, or nullptr. An environment that throws stays as it
/// was; the others are stepped.
template <Batchable E, class Body>
const char* each_on_host(std::size_t environments, Body&& body) {
  thread_local std::string failure;
  bool failed = false;
  const auto note = [&](std::size_t env, const char* reason) {
    if (!failed) failure = "environment " + std::to_string(env) + " of " + E::info.id + " failed: " + reason;
    failed = true;
  };
  for (std::size_t env = 0; env < environments; ++env) {
    try {
      body(env);
    } catch (const std::exception& error) {
      note(env, error.what());
    } catch (...) {
      note(env, "it threw something that is not a std::exception");
    }
  }
  return failed ? failure.c_str() : nullptr;
}

/// Returns the reason why an environment cannot take its action, or nullptr if all can; nothing has moved then.
template <Batchable E>
const char* refuse_actions(const void* actions, std::size_t environments) {
  thread_local std::string refusal;
  try {
    check_actions<ActionSpace<E>>(actions, environments);
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
        if (const char* refusal = refuse_actions<E>(actions, batch->environments)) return refusal;
        return each_on_host<E>(batch->environments,
                               [&](std::size_t env) { step_environment<E>(*batch, actions, *out, env); });
      },
      .step_round = [](const BatchArrays* batch, const void* actions, const BatchRow* out, void*) -> const char* {
        if (const char* refusal = refuse_actions<E>(actions, batch->environments)) return refusal;
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
