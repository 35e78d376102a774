/// The type-erased interface of a pool: one virtual call per batch, whatever the environment's type.
///
/// Sizes are the caller's to check, values are the pool's: actions and states that no environment can take are refused
/// with std::invalid_argument before anything has changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/env/description.hpp"

namespace penstock {

/// When an episode that ended is followed by the next one; as in Gymnasium.
enum class Autoreset {
  next_step,  ///< the next step resets instead of stepping: its action is ignored and its reward 0
  same_step,  ///< the step that ends an episode resets, and hands the last observation over apart
  disabled,   ///< the caller resets; a step of an environment that needs it is refused
};

/// Buffers of the caller for one round, time-major: row t * environments + b. They must live until end_round.
struct RoundBuffers {
  std::int64_t steps = 0;
  void* observation = nullptr;  ///< [steps, environments, *observation shape], of the environment's type
  float* reward = nullptr;      ///< [steps, environments], and [agents] where there are any
  std::uint8_t* terminated = nullptr;  ///< this and the following: [steps, environments]
  std::uint8_t* truncated = nullptr;
  std::int32_t* episode_id = nullptr;
};

/// Buffers of the caller for one step of some environments, a row each.
struct StepBuffers {
  void* observation = nullptr;  ///< [rows, *observation shape]: after the automatic reset, if there was one
  double* reward = nullptr;     ///< [rows], and [agents] where there are any
  bool* terminated = nullptr;
  bool* truncated = nullptr;
  bool* fresh = nullptr;              ///< true if the observation is a reset's
  double* episode_return = nullptr;   ///< this and episode_length: written only where an episode ended
  std::int64_t* episode_length = nullptr;
  void* final_observation = nullptr;  ///< like observation; Autoreset::same_step, written only where an episode ended
  double* report = nullptr;           ///< [rows, reports], of the observation's moment
  double* final_report = nullptr;     ///< like report; written where final_observation is
};

struct Episode {
  std::int64_t row;  ///< row of its last step
  std::int64_t environment;
  std::int64_t episode_id;
  std::int64_t length_steps;
  double total_reward;
  bool terminated;
  bool truncated;
};

/// The result of a round in addition to its buffers, in row order and independent of the number of threads.
struct RoundResult {
  std::vector<std::int64_t> bootstrap_rows;      ///< rows whose successor is not the next row of the same environment
  std::vector<std::byte> bootstrap_observation;  ///< [bootstrap_rows, *observation shape]: what came after those rows
  std::vector<Episode> episodes;                 ///< those that ended in this round
};

/// One named array of a saved state; `width` 0 means one value an environment.
struct Column {
  enum class Type { real, integer, word, boolean };
  std::string name;
  Type type;
  std::size_t width;
};

/// Thrown by a step that was given up because PoolSettings::interrupted said so. Environments that were not stepped
/// need a reset.
struct Interrupted final : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "the step was interrupted"; }
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
  /// Returns whether a step is known to take only microseconds.
  [[nodiscard]] virtual bool is_brief() const = 0;

  /// Starts an episode in one environment: with a seed a new generator and episode id 0, without (nullptr) the same
  /// generator continues and the episode id counts up. An open round is given up.
  virtual void reset(std::size_t environment, const std::uint64_t* seed) = 0;
  /// Changes the configuration of the running environments; laid out as PoolSettings::config. Throws, with nothing
  /// changed, if an environment cannot run with its own.
  virtual void configure(std::span<const std::vector<double>> config) = 0;
  virtual void observe(void* out) const = 0;
  /// Writes [environments, reports]; nothing if the environment reports nothing.
  virtual void report(double* out) const = 0;
  /// Draws one environment into [frame height, frame width, 3]; nothing if it does not draw itself.
  virtual void draw(std::size_t environment, std::span<std::uint8_t> out) const = 0;

  /// Steps every environment; returns the number of ended episodes.
  virtual std::size_t step(const void* actions, const StepBuffers& out) = 0;

  // Stepping of some: check and seed in one thread, then step rows of different environments concurrently. An
  // environment that throws stops its call: how many were done before it comes back, and it needs a reset.

  /// Throws unless these environments can take these actions now, a row each.
  virtual void check_rows(const void* actions, std::span<const std::int32_t> environments) = 0;
  /// Gives an environment a new generator, or with nullptr leaves it the one that it must then have. Its episode is
  /// over.
  virtual void seed(std::size_t environment, const std::uint64_t* seed) = 0;
  /// Steps these environments with an action each, into the rows from `first_row` on.
  virtual std::size_t step_rows(const void* actions, std::span<const std::int32_t> environments, std::size_t first_row,
                                const StepBuffers& out, std::exception_ptr& error) noexcept = 0;
  /// Starts episodes instead of stepping: rewards are 0, observations fresh.
  virtual std::size_t reset_rows(std::span<const std::int32_t> environments, std::size_t first_row,
                                 const StepBuffers& out, std::exception_ptr& error) noexcept = 0;

  virtual void begin_round(const RoundBuffers& buffers) = 0;
  virtual void step_round(std::int64_t t, const void* actions) = 0;
  virtual RoundResult end_round() = 0;

  [[nodiscard]] virtual std::vector<Column> columns() const = 0;
  virtual void save(std::span<void* const> columns) const = 0;
  virtual void restore(std::span<const void* const> columns) = 0;
};

/// Settings of a pool; `config[i]` belongs to the i-th field of the description, one value an environment.
struct PoolSettings {
  std::string id = {};      ///< the id that was asked for; empty: that of the environment's `info`
  std::size_t variant = 0;  ///< its place among the environment's variants
  std::size_t size = 1;
  int num_threads = 1;
  std::int64_t max_episode_steps = 0;
  Autoreset autoreset = Autoreset::next_step;
  std::vector<std::vector<double>> config;
  std::string resources;  ///< source of `Shared`: the folder that the library was loaded with, or a setting
  bool thread_affinity = false;  ///< each thread but the caller's stays on one CPU
  /// Asked now and then, in the calling thread, while a step takes long: whether to give it up. May be nullptr.
  bool (*interrupted)() = nullptr;
};

using Factory = std::unique_ptr<AnyPool> (*)(const PoolSettings& settings);

struct BatchKernels;

struct CatalogEntry {
  Description description;
  Factory make;
  std::size_t variant = 0;  ///< for PoolSettings
  /// Completes the description for a folder of resources, if the environment sizes itself. Else nullptr.
  void (*complete)(Description& description, const std::string& resources) = nullptr;
  /// Returns how many values are observed under a configuration, if that decides it. Else nullptr.
  std::size_t (*observed_values)(std::span<const std::vector<double>> config) = nullptr;
  /// Steps environments in arrays of the caller, if they are Batchable. Else nullptr.
  const BatchKernels* batch = nullptr;
};

}  // namespace penstock
