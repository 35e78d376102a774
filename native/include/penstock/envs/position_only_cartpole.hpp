/// CartPole whose velocities are not observed, as POPGym's PositionOnlyCartPole (Morad et al. 2023, arXiv 2303.01859): a
/// policy needs a memory to balance the pole.
#pragma once

#include "penstock/envs/cartpole.hpp"

namespace penstock {

struct PositionOnlyCartPole : CartPole {
  static constexpr Info info{.id = "PositionOnlyCartPole-v0", .max_episode_steps = 500, .reward_threshold = 475.0};
  static constexpr auto observation = Box<2>::symmetric({2 * x_limit, 2 * angle_limit});

  PENSTOCK_HOST_DEVICE void observe(std::span<float, 2> out) const {
    out[0] = float(state.x), out[1] = float(state.angle);
  }
};

}  // namespace penstock
