/// One environment's part of a batch's work: what a thread of a GPU does, and a turn of a host's loop.
///
/// Limits, counters, masks and rewards are those of the pool's Slot, so a batch computes what a pool does.
#pragma once

#include "penstock/batch/memory.hpp"
#include "penstock/env/actions.hpp"

namespace penstock {

/// The results of a step that resets nothing, a row for each environment.
struct BatchStep {
  const bool* skipped;  ///< environments that stay as they are, with reward 0 and no flag; nullptr: none
  double* reward;  ///< [environments], and [agents] where there are any
  bool* terminated;
  bool* truncated;
  void* observation;
};

/// The results of a step of a round, which begins the next episode where one ended: one row of the round's columns.
struct BatchRow {
  float* reward;  ///< [environments], and [agents] where there are any
  std::uint8_t* terminated;
  std::uint8_t* truncated;
  std::int32_t* episode_id;
  std::int64_t* length;      ///< this and episode_return: written only where an episode ended
  double* episode_return;
  void* final_observation;   ///< before any reset; written where an episode ended, and in the last row for all
  void* observation;         ///< after any reset
  std::int64_t is_last;      ///< not 0 in the round's last row
};

template <Batchable E>
PENSTOCK_HOST_DEVICE StepOf<E> step_slot(Slot<E>& slot, const BatchArrays& batch, const void* actions, std::size_t env) {
  if constexpr (StepsAtRandom<E>) slot.rng = load_generator<E>(batch, env);
  const StepOf<E> result = slot.step(action_of<ActionSpace<E>>(actions, env), batch.max_episode_steps);
  if constexpr (StepsAtRandom<E>) store_generator<E>(slot.rng, batch, env);
  return result;
}

template <Batchable E>
PENSTOCK_APART_ON_HOST PENSTOCK_HOST_DEVICE void begin_slot(Slot<E>& slot, const BatchArrays& batch, std::size_t env) {
  slot.rng = load_generator<E>(batch, env);
  slot.begin_episode(slot.episode_id + 1);
  store_generator<E>(slot.rng, batch, env);
}

/// Makes a step without a reset. An environment between two episodes has to be skipped: some can't step on.
template <Batchable E>
PENSTOCK_HOST_DEVICE void step_environment(const BatchArrays& batch, const void* actions, const BatchStep& out,
                                           std::size_t env) {
  if (out.skipped != nullptr && out.skipped[env]) {
    put_reward<E>(StepOf<E>{}, out.reward, env);
    out.terminated[env] = out.truncated[env] = false;
    return;
  }
  Slot<E> slot = load_slot<E>(batch, env);
  const StepOf<E> step = step_slot(slot, batch, actions, env);
  put_reward<E>(step, out.reward, env);
  out.terminated[env] = step.terminated;
  out.truncated[env] = step.truncated;
  slot.observe(out.observation, env);
  store_slot(slot, batch, env);
}

/// Makes a step of a round, and begins the next episode if this one ended.
template <Batchable E>
PENSTOCK_HOST_DEVICE void step_round_environment(const BatchArrays& batch, const void* actions, const BatchRow& out,
                                                 std::size_t env) {
  Slot<E> slot = load_slot<E>(batch, env);
  const StepOf<E> step = step_slot(slot, batch, actions, env);
  const bool ended = step.terminated || step.truncated;
  put_reward<E>(step, out.reward, env);
  out.terminated[env] = step.terminated;
  out.truncated[env] = step.truncated;
  out.episode_id[env] = static_cast<std::int32_t>(slot.episode_id);
  if (ended || out.is_last != 0) slot.observe(out.final_observation, env);
  if (ended) {
    out.length[env] = slot.elapsed_steps;
    out.episode_return[env] = slot.total_reward;
    begin_slot(slot, batch, env);
  }
  slot.observe(out.observation, env);
  store_slot(slot, batch, env);
}

/// Begins the next episode.
template <Batchable E>
PENSTOCK_HOST_DEVICE void begin_environment(const BatchArrays& batch, void* observation, std::size_t env) {
  Slot<E> slot = load_slot<E>(batch, env);
  begin_slot(slot, batch, env);
  slot.observe(observation, env);
  store_slot(slot, batch, env);
}

template <Batchable E>
PENSTOCK_HOST_DEVICE void observe_environment(const BatchArrays& batch, void* observation, std::size_t env) {
  load_slot<E>(batch, env).observe(observation, env);
}

}  // namespace penstock
