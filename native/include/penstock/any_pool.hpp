/// A pool as the binding sees it: one virtual call a batch, whatever the environment's type.
///
/// Sizes are the caller's to check, values are the pool's: actions and states that no environment can take are refused
/// with std::invalid_argument before anything has changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/env.hpp"

namespace penstock {

/// Buffers of the caller for one round, time-major: row t * environments + b. They must live until end_round.
struct RoundBuffers {
  std::int64_t steps = 0;
  float* observation = nullptr;  ///< [steps, environments, *observation shape]
  float* reward = nullptr;       ///< this and the following: [steps, environments]
  std::uint8_t* terminated = nullptr;
  std::uint8_t* truncated = nullptr;
  std::int32_t* episode_id = nullptr;
};

/// Buffers of the caller for one step of every environment.
struct StepBuffers {
  float* observation;  ///< [environments, *observation shape]: after the automatic reset
  double* reward;
  bool* terminated;
  bool* truncated;
  float* final_observation;  ///< like observation; written only where an episode ended
};

struct Episode {
  std::int64_t row;  ///< of its last step
  std::int64_t environment;
  std::int64_t episode_id;
  std::int64_t length_steps;
  double total_reward;
  bool terminated;
  bool truncated;
};

/// What a round leaves beside its buffers, in row order and independent of the number of threads.
struct RoundResult {
  std::vector<std::int64_t> bootstrap_rows;   ///< rows whose successor is not the next row of the same environment
  std::vector<float> bootstrap_observation;   ///< [bootstrap_rows, *observation shape]: what came after those rows
  std::vector<Episode> episodes;              ///< those that ended in this round
};

/// One named array of a saved state; `width` 0 means one value an environment.
struct Column {
  enum class Type { real, integer, word, boolean };
  std::string name;
  Type type;
  std::size_t width;
};

class AnyPool {
 public:
  AnyPool() = default;
  AnyPool(const AnyPool&) = delete;
  AnyPool& operator=(const AnyPool&) = delete;
  virtual ~AnyPool() = default;

  [[nodiscard]] virtual const Description& description() const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual std::int64_t max_episode_steps() const = 0;
  [[nodiscard]] virtual int num_threads() const = 0;

  /// Starts an episode in one environment: with a seed a new generator and episode id 0, without (nullptr) the same
  /// generator goes on and the episode id counts up. An open round is given up.
  virtual void reset(std::size_t environment, const std::uint64_t* seed) = 0;
  virtual void observe(float* out) const = 0;
  virtual void step(const void* actions, const StepBuffers& out) = 0;

  virtual void begin_round(const RoundBuffers& buffers) = 0;
  virtual void step_round(std::int64_t t, const void* actions) = 0;
  virtual RoundResult end_round() = 0;

  [[nodiscard]] virtual std::vector<Column> columns() const = 0;
  virtual void save(std::span<void* const> columns) const = 0;
  virtual void restore(std::span<const void* const> columns) = 0;
};

/// `config[i]` belongs to the i-th field of the description and holds one value an environment.
using Factory = std::unique_ptr<AnyPool> (*)(std::size_t size, int num_threads, std::int64_t max_episode_steps,
                                             std::span<const std::vector<double>> config);

struct CatalogEntry {
  Description description;
  Factory make;
};

}  // namespace penstock
