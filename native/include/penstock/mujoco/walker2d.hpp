/// Walker2d-v5, equal to gymnasium.envs.mujoco.walker2d_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot walker2d{
    .file = "walker2d_v5.xml", .nq = 9, .nv = 9, .nu = 6, .nbody = 8, .frame_skip = 4, .control_limit = 1.0f};

struct Walker2d : Simulation<walker2d> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "Walker2d-v5", .max_episode_steps = 1000};
  static constexpr auto observation = float64_row<17>;

  struct Config {
    double forward_reward_weight = 1.0, ctrl_cost_weight = 1e-3, healthy_reward = 1.0;
    bool terminate_when_unhealthy = true;
    double healthy_z_min = 0.8, healthy_z_max = 2.0, healthy_angle_min = -1.0, healthy_angle_max = 1.0;
    double reset_noise_scale = 5e-3;
    std::int64_t frame_skip = walker2d.frame_skip;
    bool exclude_current_positions_from_observation = true;
    PENSTOCK_FIELDS(Config, forward_reward_weight, ctrl_cost_weight, healthy_reward, terminate_when_unhealthy,
                    healthy_z_min, healthy_z_max, healthy_angle_min, healthy_angle_max, reset_noise_scale,
                    frame_skip, exclude_current_positions_from_observation)
    [[nodiscard]] const char* problem() const { return common_problem(reset_noise_scale, frame_skip); }
  } config;

  struct Report {
    double x_position = 0, z_distance_from_origin = 0, x_velocity = 0;
    double reward_forward = 0, reward_ctrl = 0, reward_survive = 0;
    PENSTOCK_FIELDS(Report, x_position, z_distance_from_origin, x_velocity, reward_forward, reward_ctrl, reward_survive)
  } report;
  static constexpr std::size_t reset_reports = 2;

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), uniform_noise(rng, config.reset_noise_scale));
    report = {.x_position = qpos()[0], .z_distance_from_origin = rise(1)};
  }

  Step step(Action control) {
    const double before = qpos()[0];
    advance(control, config.frame_skip);
    const double z = qpos()[1], angle = qpos()[2];
    const bool healthy = config.healthy_z_min < z && z < config.healthy_z_max && config.healthy_angle_min < angle &&
                         angle < config.healthy_angle_max;
    const double x_velocity = speed(before, qpos()[0], config.frame_skip);
    const double forward = config.forward_reward_weight * x_velocity;
    const double survive = healthy * config.healthy_reward;
    const float ctrl_cost = control_cost(config.ctrl_cost_weight, control);
    report = {qpos()[0], rise(1), x_velocity, forward, -ctrl_cost, survive};
    return {.reward = (forward + survive) - ctrl_cost, .terminated = !healthy && config.terminate_when_unhealthy};
  }

  static std::size_t observed_values(const Config& config) {
    return nq + nv - config.exclude_current_positions_from_observation;
  }
  void observe(std::span<double> out) const {
    Writer(out).put(positions(1, config.exclude_current_positions_from_observation)).put_clipped(qvel(), -10.0, 10.0);
  }
};

}  // namespace penstock::mujoco
