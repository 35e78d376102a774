/// Pool: rounds, which write into buffers of the caller.
#pragma once

#include "penstock/engine/pool.hpp"

namespace penstock {

template <Environment E>
inline void Pool<E>::begin_round(const RoundBuffers& buffers) {
  require_started();
  next_step_ = no_round;
  for (std::size_t env = 0; env < slots_.size(); ++env) {
    if (!slots_[env].ended) continue;
    try {
      begin_next_episode(slots_[env]);
    } catch (...) {
      ready_ = slots_[env].started = false;
      std::rethrow_exception(explained(description_.id.c_str(), env, std::current_exception()));
    }
  }
  observe(buffers.observation);
  for (BlockLog& log : logs_) log.clear();
  round_ = buffers;
  next_step_ = 0;
}

template <Environment E>
void Pool<E>::log_episode(Slot<E>& slot, BlockLog& log, std::size_t row, std::size_t env, const StepOf<E>& step) {
  void* observation = log.add({static_cast<std::int64_t>(row), static_cast<std::int64_t>(env), slot.episode_id,
                               slot.elapsed_steps, slot.total_reward, step.terminated, step.truncated},
                              slot.width() * sizeof(ObservationValue<E>));
  slot.observe(observation, 0);
  begin_next_episode(slot);
}

template <Environment E>
inline void Pool<E>::step_round(std::int64_t t, const void* actions) {
  require_started();
  require_step(t, next_step_, round_.steps);
  check_actions<Action>(actions, slots_.size());
  const std::size_t environments = slots_.size(), first_row = static_cast<std::size_t>(t) * environments;
  const bool is_last = t + 1 == round_.steps;
  each_block([=, this](std::size_t first, std::size_t last, ThreadStats& stats, BlockLog& log) {
    const RoundBuffers round = round_;  // a local copy, which the compiler knows that no environment writes to
    each_step(first, last, stats, actions, [&](std::size_t env, const StepOf<E>* made) {
      Slot<E>& slot = slots_[env];
      const std::size_t row = first_row + env;
      const StepOf<E> step = made != nullptr ? slot.count(*made, max_episode_steps_)
                                             : slot.step(action_of<Action>(actions, env), max_episode_steps_);
      put_reward<E>(step, round.reward, row);
      round.terminated[row] = step.terminated;
      round.truncated[row] = step.truncated;
      round.episode_id[row] = static_cast<std::int32_t>(slot.episode_id);
      if (step.terminated || step.truncated) log_episode(slot, log, row, env, step);
      if (!is_last) slot.observe(round.observation, row + environments);
    });
  });
  ++next_step_;
}

template <Environment E>
inline RoundResult Pool<E>::end_round() {
  require_started();
  require_all_steps(next_step_, round_.steps);
  next_step_ = no_round;
  const std::size_t bytes = slots_.front().width() * sizeof(ObservationValue<E>);
  RoundResult result;
  for (const auto& [env, row] : merge(logs_, slots_.size(), bytes, round_.steps, result))
    slots_[env].observe(result.bootstrap_observation.data(), row);
  return result;
}

}  // namespace penstock
