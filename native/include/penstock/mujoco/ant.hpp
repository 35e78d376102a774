/// Ant-v5, equal to gymnasium.envs.mujoco.ant_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot ant{.file = "ant.xml", .nq = 15, .nv = 14, .nu = 8, .nbody = 14, .frame_skip = 5,
                           .control_limit = 1.0f, .derived = body_positions | contact_forces};

struct Ant : Simulation<ant> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "Ant-v5", .max_episode_steps = 1000, .reward_threshold = 6000.0};
  static constexpr auto observation = float64_row<105>;

  struct Config {
    double forward_reward_weight = 1.0, ctrl_cost_weight = 0.5, contact_cost_weight = 5e-4, healthy_reward = 1.0;
    std::int64_t main_body = 1;
    bool terminate_when_unhealthy = true;
    double healthy_z_min = 0.2, healthy_z_max = 1.0, contact_force_min = -1.0, contact_force_max = 1.0;
    double reset_noise_scale = 0.1;
    std::int64_t frame_skip = ant.frame_skip;
    bool exclude_current_positions_from_observation = true, include_cfrc_ext_in_observation = true;
    PENSTOCK_FIELDS(Config, forward_reward_weight, ctrl_cost_weight, contact_cost_weight, healthy_reward, main_body,
                    terminate_when_unhealthy, healthy_z_min, healthy_z_max, contact_force_min, contact_force_max,
                    reset_noise_scale, frame_skip, exclude_current_positions_from_observation,
                    include_cfrc_ext_in_observation)
    [[nodiscard]] const char* problem() const {
      if (main_body < 0 || main_body >= ant.nbody) return "main_body is the number of a body, 0 to 13";
      return common_problem(reset_noise_scale, frame_skip);
    }
  } config;

  struct Report {
    double x_position = 0, y_position = 0, distance_from_origin = 0, x_velocity = 0, y_velocity = 0;
    double reward_forward = 0, reward_ctrl = 0, reward_contact = 0, reward_survive = 0;
    PENSTOCK_FIELDS(Report, x_position, y_position, distance_from_origin, x_velocity, y_velocity, reward_forward,
                    reward_ctrl, reward_contact, reward_survive)
  } report;
  static constexpr std::size_t reset_reports = 3;

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), normal_noise(rng, config.reset_noise_scale));
    report = {.x_position = qpos()[0], .y_position = qpos()[1], .distance_from_origin = distance_from_origin()};
  }

  Step step(Action control) {
    const mjtNum* main_body = data->xpos + 3 * config.main_body;
    const double x_before = main_body[0], y_before = main_body[1];
    advance(control, config.frame_skip);
    const double x_velocity = speed(x_before, main_body[0], config.frame_skip);
    const double y_velocity = speed(y_before, main_body[1], config.frame_skip);
    const bool healthy = is_healthy();
    const double forward = x_velocity * config.forward_reward_weight, survive = healthy * config.healthy_reward;
    const float ctrl_cost = control_cost(config.ctrl_cost_weight, control);
    const double contact_cost =
        config.contact_cost_weight * numpy_sum<6 * nbody>([&, forces = cfrc_ext()](std::size_t i) {
          const double force = clip(forces[i], config.contact_force_min, config.contact_force_max);
          return force * force;
        });
    report = {qpos()[0], qpos()[1],  distance_from_origin(), x_velocity, y_velocity,
              forward,   -ctrl_cost, -contact_cost,          survive};
    return {.reward = (forward + survive) - (ctrl_cost + contact_cost),
            .terminated = !healthy && config.terminate_when_unhealthy};
  }

  static std::size_t observed_values(const Config& config) {
    return nq + nv - 2 * config.exclude_current_positions_from_observation + 6 * (nbody - 1) * config.include_cfrc_ext_in_observation;
  }
  void observe(std::span<double> out) const {
    Writer to(out);
    to.put(positions(2, config.exclude_current_positions_from_observation)).put(qvel());
    if (config.include_cfrc_ext_in_observation)
      to.put_clipped(cfrc_ext().subspan<6>(), config.contact_force_min, config.contact_force_max);
  }

 private:
  [[nodiscard]] bool is_healthy() const {
    return all_finite(qpos()) && all_finite(qvel()) && config.healthy_z_min <= qpos()[2] &&
           qpos()[2] <= config.healthy_z_max;
  }
};

}  // namespace penstock::mujoco
