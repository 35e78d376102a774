/// Both humanoids: the suite's own, and the one of CMU's recorded motions.
#include <array>
#include <span>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

/// Names of a body's parts, and which place of the trunk's rotation says how upright it is.
struct Anatomy {
  const char *trunk, *velocity;
  std::array<const char*, 4> limbs;  ///< the left hand and foot, the right hand and foot
  Entry up;
};
constexpr Anatomy suites{"torso", "torso_subtreelinvel", {"left_hand", "left_foot", "right_hand", "right_foot"}, zz};
constexpr Anatomy cmus{"thorax", "thorax_subtreelinvel", {"lhand", "lfoot", "rhand", "rfoot"}, zy};

class Humanoid final : public Task {
 public:
  Humanoid(const mjModel& model, const Anatomy& anatomy, double speed, bool pure_state)
      : speed_(speed), pure_state_(pure_state), up_(anatomy.up), trunk_(body_of(model, anatomy.trunk)),
        head_(body_of(model, "head")), velocity_(sensor_of(model, anatomy.velocity)) {
    for (std::size_t i = 0; i < limbs_.size(); ++i) limbs_[i] = body_of(model, anatomy.limbs[i]);
  }

  void begin(Physics& physics, Rng& rng) const override {
    do {
      physics.randomize_joints(rng);
      physics.forward_without_actuators();
    } while (physics.data().ncon > 0);
  }
  void observe(const Physics& physics, Writer& out) const override {
    if (pure_state_) {
      out.put(physics.positions()).put(physics.velocities());
      return;
    }
    const double* rotation = physics.body_rotation(trunk_);
    out.put(physics.positions(7)).put(physics.body_position(head_)[2]);
    for (const int limb : limbs_)
      out.put(in_frame(between(physics.body_position(limb), physics.body_position(trunk_)), rotation));
    out.put(std::array{rotation[zx], rotation[zy], rotation[zz]}).put(physics.sensor(velocity_)).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    const Tolerance high{.low = 1.4, .high = unlimited, .margin = 1.4 / 4};
    const Tolerance upright{.low = 0.9, .high = unlimited, .margin = 1.9, .kind = Sigmoid::linear, .at_margin = 0.0};
    const double stands = high(physics.body_position(head_)[2]) * upright(physics.body_rotation(trunk_)[up_]);
    const auto horizontal = physics.sensor(velocity_).first(2);
    if (speed_ == 0.0) {
      const Tolerance still{.margin = 2.0, .in_array = true};
      return small_control(physics) * stands * ((still(horizontal[0]) + still(horizontal[1])) / 2.0);
    }
    const Tolerance fast{.low = speed_, .high = unlimited, .margin = speed_, .kind = Sigmoid::linear, .at_margin = 0.0};
    return small_control(physics) * stands * ((5.0 * fast(length(horizontal)) + 1.0) / 6.0);
  }

 private:
  double speed_;
  bool pure_state_;
  Entry up_;
  int trunk_, head_, velocity_;
  std::array<int, 4> limbs_;
};

template <const Anatomy& anatomy, int Speed, bool PureState = false>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Humanoid>(model, anatomy, Speed, PureState);
}

}  // namespace

std::vector<Listed> humanoid() {
  constexpr auto file = "humanoid.xml";
  return {{"dmc/humanoid-stand", file, 21, 67, 0.025, make<suites, 0>},
          {"dmc/humanoid-walk", file, 21, 67, 0.025, make<suites, 1>},
          {"dmc/humanoid-run", file, 21, 67, 0.025, make<suites, 10>},
          {"dmc/humanoid-run_pure_state", file, 21, 55, 0.025, make<suites, 10, true>}};
}

std::vector<Listed> humanoid_cmu() {
  constexpr auto file = "humanoid_CMU.xml";
  return {{"dmc/humanoid_CMU-stand", file, 56, 137, 0.02, make<cmus, 0>},
          {"dmc/humanoid_CMU-walk", file, 56, 137, 0.02, make<cmus, 1>},
          {"dmc/humanoid_CMU-run", file, 56, 137, 0.02, make<cmus, 10>}};
}

}  // namespace penstock::dmc
