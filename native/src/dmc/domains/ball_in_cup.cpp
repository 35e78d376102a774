#include <cmath>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class BallInCup final : public Task {
 public:
  explicit BallInCup(const mjModel& model)
      : ball_(body_of(model, "ball")), shape_(geom_of(model, "ball")), target_(site_of(model, "target")),
        x_(model.jnt_qposadr[joint_of(model, "ball_x")]), z_(model.jnt_qposadr[joint_of(model, "ball_z")]) {}

  void begin(Physics& physics, Rng& rng) const override {
    do {
      physics.data().qpos[x_] = rng.uniform(-0.2, 0.2);
      physics.data().qpos[z_] = rng.uniform(0.2, 0.5);
      physics.forward_without_actuators();
    } while (physics.data().ncon > 0);
  }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions()).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    const Vector away = between(physics.data().site_xpos + 3 * target_, physics.body_position(ball_));
    const double* room = physics.model.site_size + 3 * target_;
    const double radius = physics.model.geom_size[3 * shape_];
    return std::abs(away[0]) < room[0] - radius && std::abs(away[2]) < room[2] - radius ? 1.0 : 0.0;
  }

 private:
  int ball_, shape_, target_, x_, z_;
};

}  // namespace

std::vector<Listed> ball_in_cup() {
  return {{"dmc/ball_in_cup-catch", "ball_in_cup.xml", 2, 8, 0.02,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<BallInCup>(model); }}};
}

}  // namespace penstock::dmc
