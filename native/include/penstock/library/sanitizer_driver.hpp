/// Steps a library's environments with random actions, for a program that sanitizers watch: `penstock check-env`
/// compiles it. One environment with one row first, so that a write beyond an observation is one beyond its memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "penstock/library.hpp"

namespace penstock {

inline void drive_pool(const CatalogEntry& entry, const std::string& resources, std::size_t size, std::int64_t steps,
                       int rounds) {
  PoolSettings settings;
  settings.size = size;
  settings.num_threads = static_cast<int>(std::min<std::size_t>(size, 2));
  const std::int64_t limit = entry.description.max_episode_steps;
  settings.max_episode_steps = limit > 0 ? std::min<std::int64_t>(limit, 200) : 200;
  settings.autoreset = Autoreset::same_step;
  for (const FieldInfo& field : entry.description.config) settings.config.emplace_back(size, field.preset);
  settings.resources = resources;
  const auto pool = entry.make(settings);
  const Description& d = pool->description();  // whole, where sizes are those of the resources
  for (std::uint64_t env = 0; env < size; ++env) pool->reset(env, &env);

  std::size_t seen = d.observation_type == ValueType::float64 ? 8 : d.observation_type == ValueType::float32 ? 4 : 1;
  for (const std::int64_t extent : d.observation_shape) seen *= static_cast<std::size_t>(extent);
  std::size_t width = 1;
  for (const std::int64_t extent : d.action_shape) width *= static_cast<std::size_t>(extent);

  Rng rng(7);
  std::vector<std::int64_t> choices(d.action_count > 0 ? size * width : 0);
  std::vector<float> values(d.action_count > 0 ? 0 : size * width);
  const std::size_t rows = size * static_cast<std::size_t>(steps);
  for (int round = 0; round < rounds; ++round) {
    // Allocated per round at their exact size, so that sanitizers watch the bytes behind their ends.
    std::vector<std::byte> observation(rows * seen);
    std::vector<float> reward(rows * std::max<std::size_t>(d.agents, 1));
    std::vector<std::uint8_t> terminated(rows), truncated(rows);
    std::vector<std::int32_t> episode_id(rows);
    pool->begin_round({steps, observation.data(), reward.data(), terminated.data(), truncated.data(), episode_id.data()});
    for (std::int64_t t = 0; t < steps; ++t) {
      for (std::int64_t& choice : choices) choice = static_cast<std::int64_t>(rng.random() * double(d.action_count));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double low = std::max(double(d.action_low[i % width]), -1e3);
        const double high = std::min(double(d.action_high[i % width]), 1e3);
        const double place = rng.random() * 1.2 - 0.1;  // at the bounds at times
        values[i] = static_cast<float>(low + (high - low) * std::clamp(place, 0.0, 1.0));
      }
      pool->step_round(t, d.action_count > 0 ? static_cast<const void*>(choices.data()) : values.data());
    }
    pool->end_round();
  }
}

/// 0, or 1 if an environment threw: it is said on standard error.
inline int drive(const Library& library, const std::string& id, const std::string& resources) {
  try {
    for (const CatalogEntry& entry : *library.entries) {
      if (entry.description.id != id) continue;
      drive_pool(entry, resources, 1, 1, 600);
      drive_pool(entry, resources, 4, 50, 6);
      drive_pool(entry, resources, 64, 10, 1);  // by step_group, where there is one
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "threw: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace penstock
