/// InvertedPendulum-v5, equal to gymnasium.envs.mujoco.inverted_pendulum_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot inverted_pendulum{
    .file = "inverted_pendulum.xml", .nq = 2, .nv = 2, .nu = 1, .nbody = 3, .frame_skip = 2, .control_limit = 3.0f};

struct InvertedPendulum : Simulation<inverted_pendulum> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "InvertedPendulum-v5", .max_episode_steps = 1000, .reward_threshold = 950.0};
  static constexpr auto observation = float64_row<4>;

  struct Config {
    double reset_noise_scale = 0.01;
    std::int64_t frame_skip = inverted_pendulum.frame_skip;
    PENSTOCK_FIELDS(Config, reset_noise_scale, frame_skip)
    [[nodiscard]] const char* problem() const { return common_problem(reset_noise_scale, frame_skip); }
  } config;

  struct Report {
    double reward_survive = 0;
    PENSTOCK_FIELDS(Report, reward_survive)
  } report;
  static constexpr std::size_t reset_reports = 0;

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), uniform_noise(rng, config.reset_noise_scale));
    report = {};
  }

  Step step(Action control) {
    advance(control, config.frame_skip);
    const bool fell = !all_finite(qpos()) || !all_finite(qvel()) || std::abs(qpos()[1]) > 0.2;
    report = {.reward_survive = fell ? 0.0 : 1.0};
    return {.reward = report.reward_survive, .terminated = fell};
  }

  void observe(std::span<double, 4> out) const { Writer(out).put(qpos()).put(qvel()); }
};

}  // namespace penstock::mujoco
