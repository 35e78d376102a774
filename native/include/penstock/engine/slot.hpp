/// One environment of a pool, or of a batch, with the framework's bookkeeping for it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "penstock/engine/any_pool.hpp"

namespace penstock {

/// Numbers of a report.
template <Reports E>
inline constexpr std::size_t report_size = [] {
  std::size_t size = 0;
  for_each_field<typename E::Report>([&](const auto& field) {
    using T = typename std::remove_cvref_t<decltype(field)>::Type;
    if constexpr (is_field_array<T>) size += std::tuple_size_v<T>;
    else ++size;
  });
  return size;
}();

/// Padded to cache lines, so that two threads never write to the same one. What only a reset needs stands last, where a
/// step does not load it.
template <Environment E>
struct alignas(64) Slot {
  using Value = ObservationValue<E>;

  PENSTOCK_HOST_DEVICE explicit Slot(E made) : env(std::move(made)) {}

  std::int64_t elapsed_steps = 0;
  double total_reward = 0.0;
  bool started = false;  ///< there was a reset, and no step has failed since
  bool ended = false;    ///< the episode is over, and the next one has not begun
  bool seeded = false;   ///< rng is the caller's
  E env;
  std::int64_t episode_id = 0;
  Rng rng = Rng::from_words({});  ///< none yet: seeding one costs more than a step

  PENSTOCK_HOST_DEVICE void begin_episode(std::int64_t id) {
    started = false;  // a reset that throws leaves nothing that could be stepped
    env.reset(rng);
    elapsed_steps = 0;
    total_reward = 0.0;
    episode_id = id;
    ended = false;
    started = true;
  }

  PENSTOCK_HOST_DEVICE StepOf<E> step(typename ActionSpace<E>::Argument action, std::int64_t max_episode_steps) {
    if constexpr (StepsAtRandom<E>) return count(env.step(action, rng), max_episode_steps);
    else return count(env.step(action), max_episode_steps);
  }

  /// Counts a step that the environment has made.
  PENSTOCK_HOST_DEVICE StepOf<E> count(StepOf<E> result, std::int64_t max_episode_steps) {
    ++elapsed_steps;
    if constexpr (agents_of<E> > 0)
      total_reward += std::accumulate(result.rewards.begin(), result.rewards.end(), 0.0) / agents_of<E>;
    else
      total_reward += result.reward;
    // As Gymnasium's TimeLimit: the limit says nothing about `terminated`, so both can hold on the last allowed step.
    if (max_episode_steps > 0 && elapsed_steps >= max_episode_steps) result.truncated = true;
    return result;
  }

  /// Values of an observation's row.
  [[nodiscard]] PENSTOCK_HOST_DEVICE std::size_t width() const {
    if constexpr (SizesItself<E>) return env.row_size();
    else if constexpr (SizedByConfig<E>) return E::observed_values(env.config);
    else return row_size<E>;
  }

  PENSTOCK_HOST_DEVICE void observe(void* rows, std::size_t row) const {
    Value* out = static_cast<Value*>(rows) + row * width();
    if constexpr (SizesItself<E> || SizedByConfig<E>) {
      env.observe(std::span<Value>(out, width()));
    } else {
      if constexpr (MasksActions<E>) {
        std::array<bool, mask_size<E>> allowed{};
        env.action_mask(allowed);
        out = std::copy(allowed.begin(), allowed.end(), out);
      }
      env.observe(std::span<Value, observation_size<E>>(out, observation_size<E>));
    }
  }

  void report(double* rows, std::size_t row) const {
    if constexpr (Reports<E>) {
      double* out = rows + row * report_size<E>;
      for_each_field<typename E::Report>([&](const auto& field) {
        const auto& value = env.report.*field.member;
        if constexpr (is_field_array<std::remove_cvref_t<decltype(value)>>)
          out = std::copy(value.begin(), value.end(), out);
        else
          *out++ = value;
      });
    }
  }
};

/// Writes the rewards of a step to row `row`.
template <Environment E, class T>
PENSTOCK_HOST_DEVICE void put_reward(const StepOf<E>& step, T* rows, std::size_t row) {
  if constexpr (agents_of<E> > 0)
    for (std::size_t agent = 0; agent < agents_of<E>; ++agent)
      rows[row * agents_of<E> + agent] = static_cast<T>(step.rewards[agent]);
  else
    rows[row] = static_cast<T>(step.reward);
}

/// Sets the members of a configuration; `presets` is one of the same type with its defaults.
inline void put_fields(void* config, const void* presets, std::span<const Member> members, std::size_t env,
                       std::span<const std::vector<double>> values) {
  for (std::size_t index = 0; index < members.size(); ++index) {
    const Member& member = members[index];
    const double value = values[index][env];
    if (std::isnan(value) || (std::isinf(value) && std::isfinite(number_at(member.in(presets), member.kind))))
      throw std::invalid_argument(std::string(member.name) + " of environment " + std::to_string(env) +
                                  " is not finite: got " + std::to_string(value));
    put_number(member.in(config), member.kind, value);
  }
}
[[noreturn]] inline void refuse_configuration(std::size_t env, const char* problem) {
  throw std::invalid_argument("configuration of environment " + std::to_string(env) + ": " + problem);
}

/// Sets the fields of a configuration from one double each and refuses what the environment cannot run with. Infinite
/// is only a field that is by default: a limit that is none.
template <HasFields Config>
void configure(Config& config, std::size_t env, std::span<const std::vector<double>> values) {
  static const Config presets{};
  put_fields(&config, &presets, member_table<Config>, env, values);
  if constexpr (ChecksItself<Config>)
    if (const char* problem = config.problem()) refuse_configuration(env, problem);
}

/// Returns how many values the first environment of a configuration observes.
template <class E>
std::size_t observed_values(std::span<const std::vector<double>> values) {
  typename E::Config config;
  configure(config, 0, values);
  return E::observed_values(config);
}

}  // namespace penstock
