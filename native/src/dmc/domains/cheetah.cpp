#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class Cheetah final : public Task {
 public:
  explicit Cheetah(const mjModel& model) : velocity_(sensor_of(model, "torso_subtreelinvel")) {}

  /// Drawn within the joints' ranges, the robot then falls for 200 steps.
  void begin(Physics& physics, Rng& rng) const override {
    const mjModel& model = physics.model;
    for (int joint = 0; joint < model.njnt; ++joint)
      if (model.jnt_limited[joint])
        physics.data().qpos[joint] = rng.uniform(model.jnt_range[2 * joint], model.jnt_range[2 * joint + 1]);
    physics.step(200);
    physics.data().time = 0.0;
  }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions(1)).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    const Tolerance fast{.low = 10.0, .high = unlimited, .margin = 10.0, .kind = Sigmoid::linear, .at_margin = 0.0};
    return fast(physics.sensor_value(velocity_));
  }

 private:
  int velocity_;
};

}  // namespace

std::vector<Listed> cheetah() {
  return {{"dmc/cheetah-run", "cheetah.xml", 6, 17, 0,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Cheetah>(model); }}};
}

}  // namespace penstock::dmc
