/// Swimmer-v5, equal to gymnasium.envs.mujoco.swimmer_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot swimmer{
    .file = "swimmer.xml", .nq = 5, .nv = 5, .nu = 2, .nbody = 4, .frame_skip = 4, .control_limit = 1.0f};

struct Swimmer : Simulation<swimmer> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "Swimmer-v5", .max_episode_steps = 1000, .reward_threshold = 360.0};
  static constexpr auto observation = float64_row<8>;

  struct Config {
    double forward_reward_weight = 1.0, ctrl_cost_weight = 1e-4, reset_noise_scale = 0.1;
    std::int64_t frame_skip = swimmer.frame_skip;
    bool exclude_current_positions_from_observation = true;
    PENSTOCK_FIELDS(Config, forward_reward_weight, ctrl_cost_weight, reset_noise_scale, frame_skip,
                    exclude_current_positions_from_observation)
    [[nodiscard]] const char* problem() const { return common_problem(reset_noise_scale, frame_skip); }
  } config;

  struct Report {
    double x_position = 0, y_position = 0, distance_from_origin = 0, x_velocity = 0, y_velocity = 0;
    double reward_forward = 0, reward_ctrl = 0;
    PENSTOCK_FIELDS(Report, x_position, y_position, distance_from_origin, x_velocity, y_velocity, reward_forward,
                    reward_ctrl)
  } report;
  static constexpr std::size_t reset_reports = 3;

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), uniform_noise(rng, config.reset_noise_scale));
    report = {.x_position = qpos()[0], .y_position = qpos()[1], .distance_from_origin = distance_from_origin()};
  }

  Step step(Action control) {
    const double x_before = qpos()[0], y_before = qpos()[1];
    advance(control, config.frame_skip);
    const double x_velocity = speed(x_before, qpos()[0], config.frame_skip);
    const double y_velocity = speed(y_before, qpos()[1], config.frame_skip);
    const double forward = config.forward_reward_weight * x_velocity;
    const float ctrl_cost = control_cost(config.ctrl_cost_weight, control);
    report = {qpos()[0], qpos()[1], distance_from_origin(), x_velocity, y_velocity, forward, -ctrl_cost};
    return {.reward = forward - ctrl_cost};
  }

  static std::size_t observed_values(const Config& config) {
    return nq + nv - 2 * config.exclude_current_positions_from_observation;
  }
  void observe(std::span<double> out) const {
    Writer(out).put(positions(2, config.exclude_current_positions_from_observation)).put(qvel());
  }
};

}  // namespace penstock::mujoco
