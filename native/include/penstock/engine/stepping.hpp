/// Pool: stepping of single environments and of blocks of them, and what follows when one throws.
#pragma once

#include "penstock/engine/pool.hpp"

namespace penstock {

template <Environment E>
inline std::size_t Pool<E>::step(const void* actions, const StepBuffers& out) {
  require_started();
  require_no_round(next_step_ != no_round, "step()");
  check_actions<Action>(actions, slots_.size());
  if (autoreset_ == Autoreset::disabled)
    for (std::size_t env = 0; env < slots_.size(); ++env) require_going(env);
  each_block([&](std::size_t first, std::size_t last, ThreadStats& stats, BlockLog&) {
    const StepBuffers rows = out;  // a local copy, which the compiler knows that no environment writes to
    std::size_t ended = 0;
    each_step(first, last, stats, actions, [&](std::size_t env, const StepOf<E>* made) {
      ended += step_row(slots_[env], actions, env, env, rows, made);
    });
    stats.ended += ended;
  });
  std::size_t ended = 0;
  for (ThreadStats& stats : stats_) ended += std::exchange(stats.ended, 0);
  return ended;
}

template <Environment E>
inline void Pool<E>::check_rows(const void* actions, std::span<const std::int32_t> environments) {
  require_no_round(next_step_ != no_round, "send() or step_rows()");
  for (const std::int32_t env : environments)
    if (!slots_[static_cast<std::size_t>(env)].started) [[unlikely]] refuse_unready(static_cast<std::size_t>(env));
  check_actions<Action>(actions, environments.size(), environments.data());
  if (autoreset_ == Autoreset::disabled)
    for (const std::int32_t env : environments) require_going(static_cast<std::size_t>(env));
  ready_ = false;  // threads will not say so here if an environment fails
}

template <Environment E>
inline std::size_t Pool<E>::block_size(const PoolSettings& settings) {
  const std::size_t blocks = 8 * static_cast<std::size_t>(settings.num_threads);
  const std::size_t needed = (settings.size + ThreadTeam::max_blocks - 1) / ThreadTeam::max_blocks;
  std::size_t size = std::max((settings.size + blocks - 1) / blocks, needed);
  if constexpr (StepsInGroups<E>) size = std::max(size, group_size);
  return size < 32 ? size : (size + 63) / 64 * 64;
}

template <Environment E>
void Pool<E>::reset_row(Slot<E>& slot, std::size_t row, const StepBuffers& out) {
  begin_next_episode(slot);
  for (std::size_t i = 0; i < reward_size<E>; ++i) out.reward[row * reward_size<E> + i] = 0.0;
  out.terminated[row] = out.truncated[row] = false;
  out.fresh[row] = true;
  slot.observe(out.observation, row);
  slot.report(out.report, row);
}

template <Environment E>
void Pool<E>::end_row(Slot<E>& slot, std::size_t row, const StepBuffers& out) const {
  out.episode_return[row] = slot.total_reward;
  out.episode_length[row] = slot.elapsed_steps;
  if (autoreset_ == Autoreset::same_step) {
    slot.observe(out.final_observation, row);
    slot.report(out.final_report, row);
    begin_next_episode(slot);
  } else {
    slot.ended = true;
  }
}

template <Environment E>
inline bool Pool<E>::step_row(Slot<E>& slot, const void* actions, std::size_t action, std::size_t row,
                              const StepBuffers& out, const StepOf<E>* made) {
  if (slot.ended) {  // only Autoreset::next_step gets here
    reset_row(slot, row, out);
    return false;
  }
  const StepOf<E> step = made != nullptr ? slot.count(*made, max_episode_steps_)
                                         : slot.step(action_of<Action>(actions, action), max_episode_steps_);
  put_reward<E>(step, out.reward, row);
  out.terminated[row] = step.terminated;
  out.truncated[row] = step.truncated;
  const bool ended = step.terminated || step.truncated;
  out.fresh[row] = ended && autoreset_ == Autoreset::same_step;
  if (ended) end_row(slot, row, out);
  slot.observe(out.observation, row);
  slot.report(out.report, row);
  return ended;
}

template <Environment E>
template <class Body>
inline std::size_t Pool<E>::each_row(std::span<const std::int32_t> environments, std::exception_ptr& error,
                                     Body&& body) noexcept {
  for (std::size_t index = 0; index < environments.size(); ++index) {
    const auto env = static_cast<std::size_t>(environments[index]);
    try {
      body(env, index);
    } catch (...) {
      slots_[env].started = false;
      error = explained(description_.id.c_str(), env, std::current_exception());
      return index;
    }
  }
  return environments.size();
}

template <Environment E>
template <class Body>
inline void Pool<E>::each_block(Body&& body) {
  team_.run(
      [&](std::size_t member, std::size_t first, std::size_t last) noexcept {
        for (std::size_t block = first; block < last; ++block) {
          const std::size_t begin = block * block_size_, end = std::min(begin + block_size_, slots_.size());
          if (given_up_.load(std::memory_order_relaxed)) [[unlikely]]
            for (std::size_t env = begin; env < end; ++env) slots_[env].started = false;
          else
            body(begin, end, stats_[member], logs_[block]);
        }
      },
      [&] {
        if (interrupted_ != nullptr && interrupted_()) given_up_.store(true, std::memory_order_relaxed);
      });
  if (given_up_.exchange(false)) [[unlikely]] {
    forget_step();
    throw Interrupted();
  }
  for (const ThreadStats& stats : stats_)
    if (stats.error) [[unlikely]] fail();
}

template <Environment E>
template <class Body>
inline void Pool<E>::each_step(std::size_t first, std::size_t last, ThreadStats& stats, const void* actions,
                               Body&& body) noexcept {
  if constexpr (StepsInGroups<E>) {
    if (group_stepper_ != nullptr) {
      std::array<StepOf<E>, group_size> steps;
      Group<E> group;
      for (; first + group_size <= last; first += group_size) {
        // With those whose episode has ended: a reset, which follows, leaves nothing of what they are stepped to.
        for (std::size_t i = 0; i < group_size; ++i) group[i] = &slots_[first + i].env;
        const bool made = group_stepper_(group, static_cast<const std::int64_t*>(actions) + first, steps);
        each_environment(first, first + group_size, stats,
                         [&](std::size_t env) { body(env, made ? &steps[env - first] : nullptr); });
      }
    }
  }
  each_environment(first, last, stats, [&](std::size_t env) { body(env, nullptr); });
}

template <Environment E>
template <class Body>
inline void Pool<E>::each_environment(std::size_t first, std::size_t last, ThreadStats& stats, Body&& body) noexcept {
  for (std::size_t env = first; env < last; ++env) {
    try {
      body(env);
    } catch (...) {
      slots_[env].started = false;
      stats.note_failure(env);
    }
  }
}

template <Environment E>
inline void Pool<E>::fail() {
  const std::exception_ptr error = first_failure(description_.id.c_str(), stats_);
  forget_step();
  std::rethrow_exception(error);
}

template <Environment E>
inline void Pool<E>::forget_step() noexcept {
  for (ThreadStats& stats : stats_) stats = ThreadStats();
  next_step_ = no_round;
  ready_ = false;
}

}  // namespace penstock
