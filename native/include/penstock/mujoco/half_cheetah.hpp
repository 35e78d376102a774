/// HalfCheetah-v5, equal to gymnasium.envs.mujoco.half_cheetah_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot half_cheetah{
    .file = "half_cheetah.xml", .nq = 9, .nv = 9, .nu = 6, .nbody = 8, .frame_skip = 5, .control_limit = 1.0f};

struct HalfCheetah : Simulation<half_cheetah> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "HalfCheetah-v5", .max_episode_steps = 1000, .reward_threshold = 4800.0};
  static constexpr auto observation = float64_row<17>;

  struct Config {
    double forward_reward_weight = 1.0, ctrl_cost_weight = 0.1, reset_noise_scale = 0.1;
    std::int64_t frame_skip = half_cheetah.frame_skip;
    bool exclude_current_positions_from_observation = true;
    PENSTOCK_FIELDS(Config, forward_reward_weight, ctrl_cost_weight, reset_noise_scale, frame_skip,
                    exclude_current_positions_from_observation)
    [[nodiscard]] const char* problem() const { return common_problem(reset_noise_scale, frame_skip); }
  } config;

  struct Report {
    double x_position = 0, x_velocity = 0, reward_forward = 0, reward_ctrl = 0;
    PENSTOCK_FIELDS(Report, x_position, x_velocity, reward_forward, reward_ctrl)
  } report;
  static constexpr std::size_t reset_reports = 1;

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), normal_noise(rng, config.reset_noise_scale));
    report = {.x_position = qpos()[0]};
  }

  Step step(Action control) {
    const double before = qpos()[0];
    advance(control, config.frame_skip);
    const double x_velocity = speed(before, qpos()[0], config.frame_skip);
    const double forward = config.forward_reward_weight * x_velocity;
    const float ctrl_cost = control_cost(config.ctrl_cost_weight, control);
    report = {qpos()[0], x_velocity, forward, -ctrl_cost};
    return {.reward = forward - ctrl_cost};
  }

  static std::size_t observed_values(const Config& config) {
    return nq + nv - config.exclude_current_positions_from_observation;
  }
  void observe(std::span<double> out) const {
    Writer(out).put(positions(1, config.exclude_current_positions_from_observation)).put(qvel());
  }
};

}  // namespace penstock::mujoco
