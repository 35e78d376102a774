/// Reacher-v5, equal to gymnasium.envs.mujoco.reacher_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot reacher{.file = "reacher.xml", .nq = 4, .nv = 4, .nu = 2, .nbody = 5, .frame_skip = 2,
                               .control_limit = 1.0f, .derived = body_positions, .bodies = {"fingertip", "target"}};

struct Reacher : Simulation<reacher> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "Reacher-v5", .max_episode_steps = 50, .reward_threshold = -3.75};
  static constexpr auto observation = float64_row<10>;

  struct Config {
    double reward_dist_weight = 1.0, reward_control_weight = 1.0;
    std::int64_t frame_skip = reacher.frame_skip;
    PENSTOCK_FIELDS(Config, reward_dist_weight, reward_control_weight, frame_skip)
    [[nodiscard]] const char* problem() const { return skip_problem(frame_skip); }
  } config;

  struct Report {
    double reward_dist = 0, reward_ctrl = 0;
    PENSTOCK_FIELDS(Report, reward_dist, reward_ctrl)
  } report;
  static constexpr std::size_t reset_reports = 0;

  void reset(Rng& rng) {
    begin(
        [&](std::array<double, nq>& position) {
          uniform_noise(rng, -0.1, 0.1)(position);
          std::array<double, 2> goal;
          do {
            for (double& value : goal) value = rng.uniform(-0.2, 0.2);
          } while (!(norm(goal, model->fused_dot) < 0.2));
          position[2] = goal[0], position[3] = goal[1];
        },
        [&](std::array<double, nv>& velocity) {
          uniform_noise(rng, -0.005, 0.005)(velocity);
          velocity[2] = velocity[3] = 0.0;
        });
    report = {};
  }

  Step step(Action control) {
    advance(control, config.frame_skip);
    const double dist = -norm(between(fingertip, target), model->fused_dot) * config.reward_dist_weight;
    const float ctrl = -sum_of_squares(control) * static_cast<float>(config.reward_control_weight);
    report = {dist, ctrl};
    return {.reward = dist + ctrl};
  }

  void observe(std::span<double, 10> out) const {
    const double first = qpos()[0], second = qpos()[1];
    const auto gap = between(fingertip, target);
    Writer(out)
        .put(std::array{std::cos(first), std::cos(second), std::sin(first), std::sin(second)})
        .put(qpos().subspan<2>())
        .put(qvel().first<2>())
        .put(std::array{gap[0], gap[1]});
  }

 private:
  enum Listed { fingertip, target };
};

}  // namespace penstock::mujoco
