/// InvertedDoublePendulum-v5, equal to gymnasium.envs.mujoco.inverted_double_pendulum_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot inverted_double_pendulum{.file = "inverted_double_pendulum.xml", .nq = 3, .nv = 3, .nu = 1,
                                                .nbody = 4, .frame_skip = 5, .control_limit = 1.0f,
                                                .derived = constraint_forces, .sites = 1};

struct InvertedDoublePendulum : Simulation<inverted_double_pendulum> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "InvertedDoublePendulum-v5", .max_episode_steps = 1000, .reward_threshold = 9100.0};
  static constexpr auto observation = float64_row<9>;

  struct Config {
    double healthy_reward = 10.0, reset_noise_scale = 0.1;
    std::int64_t frame_skip = inverted_double_pendulum.frame_skip;
    PENSTOCK_FIELDS(Config, healthy_reward, reset_noise_scale, frame_skip)
    [[nodiscard]] const char* problem() const { return common_problem(reset_noise_scale, frame_skip); }
  } config;

  struct Report {
    double reward_survive = 0, distance_penalty = 0, velocity_penalty = 0;
    PENSTOCK_FIELDS(Report, reward_survive, distance_penalty, velocity_penalty)
  } report;
  static constexpr std::size_t reset_reports = 0;

  void reset(Rng& rng) {
    begin(uniform_noise(rng, config.reset_noise_scale), normal_noise(rng, config.reset_noise_scale));
    report = {};
  }

  Step step(Action control) {
    advance(control, config.frame_skip);
    const double x = data->site_xpos[0], y = data->site_xpos[2];  // of the pole's tip, the first site
    const bool fell = y <= 1.0;
    const double dist_penalty = 0.01 * power(x, 2.0) + power(y - 2.0, 2.0);
    const double vel_penalty = 1e-3 * power(qvel()[1], 2.0) + 5e-3 * power(qvel()[2], 2.0);
    const double alive_bonus = config.healthy_reward * !fell;
    report = {alive_bonus, -dist_penalty, -vel_penalty};
    return {.reward = (alive_bonus - dist_penalty) - vel_penalty, .terminated = fell};
  }

  void observe(std::span<double, 9> out) const {
    const double first = qpos()[1], second = qpos()[2];
    Writer(out)
        .put(qpos().first<1>())
        .put(std::array{std::sin(first), std::sin(second), std::cos(first), std::cos(second)})
        .put_clipped(qvel(), -10.0, 10.0)
        .put_clipped(std::span(data->qfrc_constraint, 1), -10.0, 10.0);
  }
};

}  // namespace penstock::mujoco
