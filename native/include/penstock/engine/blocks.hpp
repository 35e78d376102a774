/// The results that threads collect while they step: counts per thread, ended episodes per block, and their merge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "penstock/engine/any_pool.hpp"

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

/// Returns the error of an environment with its name in front; `id` is the environment's.
[[gnu::cold]] inline std::exception_ptr explained(const char* id, std::size_t env, const std::exception_ptr& error) noexcept {
  const std::string who = "environment " + std::to_string(env) + " of " + id + " failed: ";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& reason) {
    return std::make_exception_ptr(std::runtime_error(who + reason.what()));
  } catch (...) {
    return std::make_exception_ptr(std::runtime_error(who + "it threw something that is not a std::exception"));
  }
}

/// Returns the error of the first environment that failed; one did.
[[gnu::cold]] inline std::exception_ptr first_failure(const char* id, const std::vector<ThreadStats>& all) noexcept {
  const ThreadStats* first = nullptr;
  for (const ThreadStats& stats : all)
    if (stats.error && (first == nullptr || stats.failed < first->failed)) first = &stats;
  return explained(id, first->failed, first->error);
}

/// Ended episodes of one block of environments in a round, whichever thread steps it. Cleared, never shrunk: after the
/// first rounds nothing is allocated.
struct alignas(64) BlockLog {
  std::vector<Episode> episodes;
  std::vector<std::byte> final_observations;

  void clear() {
    episodes.clear();
    final_observations.clear();
  }
  /// Returns where the episode's last observation, of so many bytes, has to be written.
  [[gnu::noinline]] void* add(const Episode& episode, std::size_t bytes) {
    episodes.push_back(episode);
    final_observations.resize(final_observations.size() + bytes);
    return final_observations.data() + final_observations.size() - bytes;
  }
};

/// A row of RoundResult::bootstrap_observation that its environment still has to write.
struct RunningRow {
  std::size_t environment, row;
};

/// Merges the blocks' logs in row order, with rows for the environments that continue after the last one: those are for the
/// caller to fill. An observation has so many bytes.
inline std::vector<RunningRow> merge(const std::vector<BlockLog>& blocks, std::size_t environments, std::size_t bytes,
                                     std::int64_t steps, RoundResult& result) {
  std::vector<std::pair<const Episode*, const std::byte*>> ended;
  for (const BlockLog& log : blocks)
    for (std::size_t i = 0; i < log.episodes.size(); ++i)
      ended.emplace_back(&log.episodes[i], log.final_observations.data() + i * bytes);
  std::sort(ended.begin(), ended.end(), [](const auto& a, const auto& b) { return a.first->row < b.first->row; });

  result.episodes.reserve(ended.size());
  const std::size_t most = ended.size() + environments;
  result.bootstrap_rows.reserve(most);
  result.bootstrap_observation.resize(most * bytes);
  const auto last_row = (steps - 1) * static_cast<std::int64_t>(environments);
  std::vector<RunningRow> running;
  std::size_t next_env = 0;
  const auto add_running = [&](std::size_t until) {
    for (; next_env < until; ++next_env) {
      running.push_back({next_env, result.bootstrap_rows.size()});
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
  add_running(environments);
  result.bootstrap_observation.resize(result.bootstrap_rows.size() * bytes);
  return running;
}

}  // namespace penstock
