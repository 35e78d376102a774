#include <cmath>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class Hopper final : public Task {
 public:
  Hopper(const mjModel& model, bool hops)
      : hops_(hops), torso_(body_of(model, "torso")), foot_(body_of(model, "foot")),
        velocity_(sensor_of(model, "torso_subtreelinvel")), toe_(sensor_of(model, "touch_toe")),
        heel_(sensor_of(model, "touch_heel")) {}

  void begin(Physics& physics, Rng& rng) const override { physics.randomize_joints(rng); }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions(1)).put(physics.velocities());
    out.put(std::log1p(physics.sensor_value(toe_))).put(std::log1p(physics.sensor_value(heel_)));
  }
  double reward(const Physics& physics) const override {
    const double* centers = physics.data().xipos;
    const double stands = Tolerance{.low = 0.6, .high = 2.0}(centers[3 * torso_ + 2] - centers[3 * foot_ + 2]);
    if (!hops_) return stands * small_control(physics);
    const Tolerance fast{.low = 2.0, .high = unlimited, .margin = 1.0, .kind = Sigmoid::linear, .at_margin = 0.5};
    return stands * fast(physics.sensor_value(velocity_));
  }

 private:
  bool hops_;
  int torso_, foot_, velocity_, toe_, heel_;
};

template <bool Hops>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Hopper>(model, Hops);
}

}  // namespace

std::vector<Listed> hopper() {
  return {{"dmc/hopper-stand", "hopper.xml", 4, 15, 0.02, make<false>},
          {"dmc/hopper-hop", "hopper.xml", 4, 15, 0.02, make<true>}};
}

}  // namespace penstock::dmc
