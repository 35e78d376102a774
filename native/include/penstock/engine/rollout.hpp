/// Pool: rounds, which write into buffers of the caller.
#pragma once

#include "penstock/engine/pool.hpp"

namespace penstock {

template <Environment E>
inline void Pool<E>::begin_round(const RoundBuffers& buffers) {
  require_started();
  for (Slot<E>& slot : slots_)
    if (slot.ended) slot.begin_episode(slot.episode_id + 1);
  observe(buffers.observation);
  for (BlockLog& log : logs_) log.clear();
  round_ = buffers;
  next_step_ = 0;
}

template <Environment E>
inline void Pool<E>::step_round(std::int64_t t, const void* actions) {
  require_started();
  if (next_step_ == no_round) throw std::logic_error("no round is open: call begin_round() first");
  if (t != next_step_ || t >= round_.steps)
    throw std::invalid_argument("step_round got t=" + std::to_string(t) + ", expected " +
                                (next_step_ < round_.steps ? std::to_string(next_step_) : "end_round()"));
  check_actions<Action>(actions, slots_.size());
  const std::size_t first_row = static_cast<std::size_t>(t) * slots_.size();
  const bool is_last = t + 1 == round_.steps;
  each_block([&](std::size_t first, std::size_t last, ThreadStats& stats, BlockLog& log) {
    each_step(first, last, stats, actions, [&](std::size_t env, const StepOf<E>* made) {
      Slot<E>& slot = slots_[env];
      const std::size_t row = first_row + env;
      const StepOf<E> step = made != nullptr ? slot.count(*made, max_episode_steps_)
                                             : slot.step(action_of<Action>(actions, env), max_episode_steps_);
      put_reward<E>(step, round_.reward, row);
      round_.terminated[row] = step.terminated;
      round_.truncated[row] = step.truncated;
      round_.episode_id[row] = static_cast<std::int32_t>(slot.episode_id);
      if (step.terminated || step.truncated) {
        log.add(slot, static_cast<std::int64_t>(row), static_cast<std::int64_t>(env), step.terminated,
                  step.truncated);
        slot.begin_episode(slot.episode_id + 1);
      }
      if (!is_last) slot.observe(round_.observation, row + slots_.size());
    });
  });
  ++next_step_;
}

template <Environment E>
inline RoundResult Pool<E>::end_round() {
  require_started();
  if (next_step_ == no_round) throw std::logic_error("no round is open: call begin_round() first");
  if (next_step_ != round_.steps)
    throw std::logic_error("the round has " + std::to_string(round_.steps) + " steps, only " +
                           std::to_string(next_step_) + " were made");
  next_step_ = no_round;
  return merge<E>(logs_, slots_, round_);
}

}  // namespace penstock
