/// The results that threads collect while they step: counts per thread, ended episodes per block, and their merge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "penstock/engine/slot.hpp"

namespace penstock {

/// Counters of one thread in one step.
struct alignas(64) ThreadStats {
  std::size_t ended = 0;
  std::exception_ptr error;
  std::size_t failed = 0;  ///< the first environment that did

  void note_failure(std::size_t env) noexcept {
    if (!error || env < failed) error = std::current_exception(), failed = env;
  }
};

/// Ended episodes of one block of environments in a round, whichever thread steps it. Cleared, never shrunk: after the
/// first rounds nothing is allocated.
template <Environment E>
struct alignas(64) BlockLog {
  std::vector<Episode> episodes;
  std::vector<ObservationValue<E>> final_observations;

  void clear() {
    episodes.clear();
    final_observations.clear();
  }
  void add(const Slot<E>& slot, std::int64_t row, std::int64_t environment, bool terminated, bool truncated) {
    final_observations.resize(final_observations.size() + slot.width());
    slot.observe(final_observations.data(), episodes.size());
    episodes.push_back(
        {row, environment, slot.episode_id, slot.elapsed_steps, slot.total_reward, terminated, truncated});
  }
};

/// Merges the blocks' logs in row order, with the current observation of environments that continue after the last row.
template <Environment E>
RoundResult merge(const std::vector<BlockLog<E>>& blocks, const std::vector<Slot<E>>& slots, const RoundBuffers& round) {
  using Value = ObservationValue<E>;
  const std::size_t width = slots.front().width(), bytes = width * sizeof(Value);
  struct Source {
    const Episode* episode;
    const Value* observation;
  };
  std::vector<Source> ended;
  for (const BlockLog<E>& log : blocks)
    for (std::size_t i = 0; i < log.episodes.size(); ++i)
      ended.push_back({&log.episodes[i], log.final_observations.data() + i * width});
  std::sort(ended.begin(), ended.end(),
            [](const Source& a, const Source& b) { return a.episode->row < b.episode->row; });

  RoundResult result;
  result.episodes.reserve(ended.size());
  const std::size_t most = ended.size() + slots.size();
  result.bootstrap_rows.reserve(most);
  result.bootstrap_observation.resize(most * bytes);
  const auto last_row = (round.steps - 1) * static_cast<std::int64_t>(slots.size());
  std::size_t next_env = 0;
  const auto add_running = [&](std::size_t until) {
    for (; next_env < until; ++next_env) {
      slots[next_env].observe(result.bootstrap_observation.data(), result.bootstrap_rows.size());
      result.bootstrap_rows.push_back(last_row + static_cast<std::int64_t>(next_env));
    }
  };
  for (const auto& [episode, observation] : ended) {
    if (episode->row >= last_row) {
      add_running(static_cast<std::size_t>(episode->environment));
      ++next_env;
    }
    result.episodes.push_back(*episode);
    std::memcpy(result.bootstrap_observation.data() + result.bootstrap_rows.size() * bytes, observation, bytes);
    result.bootstrap_rows.push_back(episode->row);
  }
  add_running(slots.size());
  result.bootstrap_observation.resize(result.bootstrap_rows.size() * bytes);
  return result;
}

}  // namespace penstock
