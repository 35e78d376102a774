/// Pusher-v5, equal to gymnasium.envs.mujoco.pusher_v5 step for step.
#pragma once

#include "penstock/mujoco/simulation.hpp"

namespace penstock::mujoco {

inline constexpr Robot pusher{.file = "pusher_v5.xml", .nq = 11, .nv = 11, .nu = 7, .nbody = 13, .frame_skip = 5,
                              .control_limit = 2.0f, .derived = body_positions,
                              .bodies = {"tips_arm", "object", "goal"}};

struct Pusher : Simulation<pusher> {
  using Simulation::Simulation;
  static constexpr Info info{.id = "Pusher-v5", .max_episode_steps = 100, .reward_threshold = 0.0};
  static constexpr auto observation = float64_row<23>;

  struct Config {
    double reward_near_weight = 0.5, reward_dist_weight = 1.0, reward_control_weight = 0.1;
    std::int64_t frame_skip = pusher.frame_skip;
    PENSTOCK_FIELDS(Config, reward_near_weight, reward_dist_weight, reward_control_weight, frame_skip)
    [[nodiscard]] const char* problem() const { return skip_problem(frame_skip); }
  } config;

  struct Report {
    double reward_dist = 0, reward_ctrl = 0, reward_near = 0;
    PENSTOCK_FIELDS(Report, reward_dist, reward_ctrl, reward_near)
  } report;
  static constexpr std::size_t reset_reports = 0;

  void reset(Rng& rng) {
    begin(
        [&](std::array<double, nq>& position) {
          std::array<double, 2> cylinder;
          do {
            cylinder[0] = rng.uniform(-0.3, 0.0);
            cylinder[1] = rng.uniform(-0.2, 0.2);
          } while (!(norm(cylinder, model->fused_dot) > 0.17));
          position[7] = cylinder[0], position[8] = cylinder[1];
          position[9] = position[10] = 0.0;
        },
        [&](std::array<double, nv>& velocity) {
          uniform_noise(rng, -0.005, 0.005)(velocity);
          std::fill(velocity.end() - 4, velocity.end(), 0.0);
        });
    report = {};
  }

  Step step(Action control) {
    advance(control, config.frame_skip);
    const double near = -norm(between(object, tips_arm), model->fused_dot) * config.reward_near_weight;
    const double dist = -norm(between(object, goal), model->fused_dot) * config.reward_dist_weight;
    const float ctrl = -sum_of_squares(control) * static_cast<float>(config.reward_control_weight);
    report = {dist, ctrl, near};
    return {.reward = (dist + ctrl) + near};
  }

  void observe(std::span<double, 23> out) const {
    Writer(out)
        .put(qpos().first<7>())
        .put(qvel().first<7>())
        .put(body(tips_arm))
        .put(body(object))
        .put(body(goal));
  }

 private:
  enum Listed { tips_arm, object, goal };
};

}  // namespace penstock::mujoco
