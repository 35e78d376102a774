/// Humanoid-v5 and HumanoidStandup-v5, equal to gymnasium.envs.mujoco.humanoid_v5 and humanoidstandup_v5 step for step.
/// Their bodies differ in the file alone.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot humanoid{
    .file = "humanoid.xml", .nq = 24, .nv = 23, .nu = 17, .nbody = 14, .frame_skip = 5, .control_limit = 0.4f,
    .derived = mass_centers | body_inertias | body_velocities | actuator_forces | contact_forces};
inline constexpr Robot humanoid_standup{
    .file = "humanoidstandup.xml", .nq = 24, .nv = 23, .nu = 17, .nbody = 14, .frame_skip = 5, .control_limit = 0.4f,
    .derived = body_inertias | body_velocities | actuator_forces | contact_forces};

template <const Robot& robot>
struct HumanoidBody : Simulation<robot> {
  using Base = Simulation<robot>;
  using Base::Base;
  static constexpr auto observation = float64_row<348>;

  template <class Config>
  static std::size_t observed_values(const Config& config) {
    return Base::nq + Base::nv - 2 * config.exclude_current_positions_from_observation + 10 * bodies * config.include_cinert_in_observation +
           6 * bodies * config.include_cvel_in_observation +
           (Base::nv - 6) * config.include_qfrc_actuator_in_observation +
           6 * bodies * config.include_cfrc_ext_in_observation;
  }

 protected:
  static constexpr std::size_t bodies = Base::nbody - 1;  // the first is the world

  template <class Config>
  void observe(std::span<double> out, const Config& config) const {
    const mjData& seen = *this->data;
    Writer to(out);
    to.put(this->positions(2, config.exclude_current_positions_from_observation)).put(this->qvel());
    if (config.include_cinert_in_observation) to.put(std::span(seen.cinert + 10, 10 * bodies));
    if (config.include_cvel_in_observation) to.put(std::span(seen.cvel + 6, 6 * bodies));
    if (config.include_qfrc_actuator_in_observation) to.put(std::span(seen.qfrc_actuator + 6, Base::nv - 6));
    if (config.include_cfrc_ext_in_observation) to.put(this->cfrc_ext().template subspan<6>());
  }

  /// MuJoCo's control, which is float64 and, after an instability, not the action.
  [[nodiscard]] double control_cost(double weight) const { return weight * sum_of_squares(this->ctrl()); }
  [[nodiscard]] double force_cost(double weight, double low, double high) const {
    return clip(weight * sum_of_squares(this->cfrc_ext()), low, high);
  }
};

struct Humanoid : HumanoidBody<humanoid> {
  using HumanoidBody::HumanoidBody;
  static constexpr Info info{.id = "Humanoid-v5", .max_episode_steps = 1000};

  struct Config {
    double forward_reward_weight = 1.25, ctrl_cost_weight = 0.1, contact_cost_weight = 5e-7;
    double contact_cost_min = -unlimited, contact_cost_max = 10.0, healthy_reward = 5.0;
    bool terminate_when_unhealthy = true;
    double healthy_z_min = 1.0, healthy_z_max = 2.0, reset_noise_scale = 1e-2;
    std::int64_t frame_skip = humanoid.frame_skip;
    bool exclude_current_positions_from_observation = true;
    bool include_cinert_in_observation = true, include_cvel_in_observation = true;
    bool include_qfrc_actuator_in_observation = true, include_cfrc_ext_in_observation = true;
    PENSTOCK_FIELDS(Config, forward_reward_weight, ctrl_cost_weight, contact_cost_weight, contact_cost_min,
                    contact_cost_max, healthy_reward, terminate_when_unhealthy, healthy_z_min, healthy_z_max,
                    reset_noise_scale, frame_skip,
                    exclude_current_positions_from_observation, include_cinert_in_observation,
                    include_cvel_in_observation, include_qfrc_actuator_in_observation,
                    include_cfrc_ext_in_observation)
    [[nodiscard]] const char* problem() const { return common_problem(reset_noise_scale, frame_skip); }
  } config;

  struct Report {
    double x_position = 0, y_position = 0, distance_from_origin = 0, x_velocity = 0, y_velocity = 0;
    double reward_survive = 0, reward_forward = 0, reward_ctrl = 0, reward_contact = 0;
    PENSTOCK_FIELDS(Report, x_position, y_position, distance_from_origin, x_velocity, y_velocity, reward_survive,
                    reward_forward, reward_ctrl, reward_contact)
  } report;
  static constexpr std::size_t reset_reports = 3;

  void observe(std::span<double> out) const { HumanoidBody::observe(out, config); }

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), uniform_noise(rng, config.reset_noise_scale));
    report = {.x_position = qpos()[0], .y_position = qpos()[1], .distance_from_origin = distance_from_origin()};
  }

  Step step(Action control) {
    const auto [x_before, y_before] = mass_center();
    advance(control, config.frame_skip);
    const auto [x_after, y_after] = mass_center();
    const double x_velocity = speed(x_before, x_after, config.frame_skip);
    const double y_velocity = speed(y_before, y_after, config.frame_skip);
    const bool healthy = config.healthy_z_min < qpos()[2] && qpos()[2] < config.healthy_z_max;
    const double forward = config.forward_reward_weight * x_velocity, survive = healthy * config.healthy_reward;
    const double ctrl_cost = control_cost(config.ctrl_cost_weight);
    const double contact_cost =
        force_cost(config.contact_cost_weight, config.contact_cost_min, config.contact_cost_max);
    report = {qpos()[0], qpos()[1], distance_from_origin(), x_velocity,   y_velocity,
              survive,   forward,   -ctrl_cost,             -contact_cost};
    return {.reward = (forward + survive) - (ctrl_cost + contact_cost),
            .terminated = !healthy && config.terminate_when_unhealthy};
  }

 private:
  /// As np.einsum and np.sum add up: bodies in order, but the masses in pairs.
  [[nodiscard]] std::array<double, 2> mass_center() const {
    const mjtNum* mass = (*model)->body_mass;
    double x = 0.0, y = 0.0;
    for (std::size_t i = 0; i < nbody; ++i) {
      x += mass[i] * data->xipos[3 * i];
      y += mass[i] * data->xipos[3 * i + 1];
    }
    const double total = numpy_sum<nbody>([&](std::size_t i) { return mass[i]; });
    return {x / total, y / total};
  }
};

struct HumanoidStandup : HumanoidBody<humanoid_standup> {
  using HumanoidBody::HumanoidBody;
  static constexpr Info info{.id = "HumanoidStandup-v5", .max_episode_steps = 1000};

  struct Config {
    double uph_cost_weight = 1.0;  ///< Gymnasium takes it and makes nothing of it
    double ctrl_cost_weight = 0.1, impact_cost_weight = 5e-7, impact_cost_min = -unlimited, impact_cost_max = 10.0;
    double reset_noise_scale = 1e-2;
    std::int64_t frame_skip = humanoid_standup.frame_skip;
    bool exclude_current_positions_from_observation = true;
    bool include_cinert_in_observation = true, include_cvel_in_observation = true;
    bool include_qfrc_actuator_in_observation = true, include_cfrc_ext_in_observation = true;
    PENSTOCK_FIELDS(Config, uph_cost_weight, ctrl_cost_weight, impact_cost_weight, impact_cost_min, impact_cost_max,
                    reset_noise_scale, frame_skip,
                    exclude_current_positions_from_observation, include_cinert_in_observation,
                    include_cvel_in_observation, include_qfrc_actuator_in_observation,
                    include_cfrc_ext_in_observation)
    [[nodiscard]] const char* problem() const { return common_problem(reset_noise_scale, frame_skip); }
  } config;

  struct Report {
    double x_position = 0, y_position = 0, z_distance_from_origin = 0;
    double reward_linup = 0, reward_quadctrl = 0, reward_impact = 0;
    PENSTOCK_FIELDS(Report, x_position, y_position, z_distance_from_origin, reward_linup, reward_quadctrl,
                    reward_impact)
  } report;
  static constexpr std::size_t reset_reports = 3;

  void observe(std::span<double> out) const { HumanoidBody::observe(out, config); }

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), uniform_noise(rng, config.reset_noise_scale));
    report = {.x_position = qpos()[0], .y_position = qpos()[1], .z_distance_from_origin = rise(2)};
  }

  Step step(Action control) {
    advance(control, config.frame_skip);
    const double height_reward = qpos()[2] / (*model)->opt.timestep, ctrl_cost = control_cost(config.ctrl_cost_weight);
    const double impact_cost = force_cost(config.impact_cost_weight, config.impact_cost_min, config.impact_cost_max);
    report = {qpos()[0], qpos()[1], rise(2), height_reward, -ctrl_cost, -impact_cost};
    return {.reward = height_reward - ctrl_cost - impact_cost + 1.0};
  }
};

}  // namespace penstock::mujoco
