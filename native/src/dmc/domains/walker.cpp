#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class Walker final : public Task {
 public:
  Walker(const mjModel& model, double speed)
      : speed_(speed), torso_(body_of(model, "torso")), velocity_(sensor_of(model, "torso_subtreelinvel")) {}

  void begin(Physics& physics, Rng& rng) const override { physics.randomize_joints(rng); }
  void observe(const Physics& physics, Writer& out) const override {
    for (int body = 1; body < physics.model.nbody; ++body)
      out.put(physics.body_rotation(body)[xx]).put(physics.body_rotation(body)[xz]);
    out.put(physics.body_position(torso_)[2]).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    const double stands = Tolerance{.low = 1.2, .high = unlimited, .margin = 1.2 / 2}(physics.body_position(torso_)[2]);
    const double upright = (1.0 + physics.body_rotation(torso_)[zz]) / 2.0;
    const double standing = (3.0 * stands + upright) / 4.0;
    if (speed_ == 0.0) return standing;
    const Tolerance fast{.low = speed_, .high = unlimited, .margin = speed_ / 2, .kind = Sigmoid::linear, .at_margin = 0.5};
    return standing * (5.0 * fast(physics.sensor_value(velocity_)) + 1.0) / 6.0;
  }

 private:
  double speed_;
  int torso_, velocity_;
};

template <int Speed>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Walker>(model, Speed);
}

}  // namespace

std::vector<Listed> walker() {
  return {{"dmc/walker-stand", "walker.xml", 6, 24, 0.025, make<0>},
          {"dmc/walker-walk", "walker.xml", 6, 24, 0.025, make<1>},
          {"dmc/walker-run", "walker.xml", 6, 24, 0.025, make<8>}};
}

}  // namespace penstock::dmc
