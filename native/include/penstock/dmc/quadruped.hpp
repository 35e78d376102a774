/// The quadruped: what its tasks share, and the parts of its file that one or another of them does not have.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

#include "penstock/dmc/task.hpp"
#include "penstock/dmc/text.hpp"

namespace penstock::dmc {

class Quadruped : public Task {
 public:
  Quadruped(const mjModel& model, double speed)
      : speed_(speed), torso_(body_of(model, "torso")), velocity_(sensor_of(model, "velocimeter")),
        acceleration_(sensor_of(model, "imu_accel")), gyro_(sensor_of(model, "imu_gyro")),
        first_toe_(sensor_of(model, "force_toe_front_left")) {}

  void begin(Physics& physics, Rng& rng) const override {
    std::array<double, 4> orientation;
    rng.standard_normal(orientation);
    const double norm = length(orientation);
    for (double& value : orientation) value /= norm;
    place(physics, 0.0, 0.0, orientation);
  }

  void observe(const Physics& physics, Writer& out) const override {
    const mjModel& model = physics.model;
    const mjData& data = physics.data();
    for (int joint = 0; joint < model.njnt; ++joint)
      if (model.jnt_type[joint] == mjJNT_HINGE) out.put(data.qpos[model.jnt_qposadr[joint]]);
    for (int joint = 0; joint < model.njnt; ++joint)
      if (model.jnt_type[joint] == mjJNT_HINGE) out.put(data.qvel[model.jnt_dofadr[joint]]);
    out.put(std::span<const double>(data.act, std::size_t(model.na))).put(physics.sensor(velocity_));
    out.put(physics.body_rotation(torso_)[zz]).put(physics.sensor(acceleration_)).put(physics.sensor(gyro_));
    for (int toe = first_toe_; toe < first_toe_ + 8; ++toe)  // four forces, then four torques
      for (const double value : physics.sensor(toe)) out.put(std::asinh(value));
  }

  double reward(const Physics& physics) const override {
    const Tolerance fast{.low = speed_, .high = unlimited, .margin = speed_, .kind = Sigmoid::linear, .at_margin = 0.5};
    return upright(physics) * fast(physics.sensor_value(velocity_));
  }

 protected:
  /// Puts it as high above that place as there is no contact.
  static void place(Physics& physics, double x, double y, const std::array<double, 4>& orientation) {
    double height = 0.0;
    for (int attempt = 0; attempt < 10'000; ++attempt, height += 0.01) {
      physics.reset();
      double* root = physics.data().qpos;
      root[0] = x, root[1] = y, root[2] = height;
      std::copy(orientation.begin(), orientation.end(), root + 3);
      physics.forward_without_actuators();
      if (physics.data().ncon == 0) return;
    }
    throw std::runtime_error("no height without a contact in 10000 attempts");
  }
  /// 1 where its torso is within an angle of that cosine of upright, 0 upside down.
  double upright(const Physics& physics, double cosine = 1.0) const {
    const Tolerance up{
        .low = cosine, .high = unlimited, .margin = 1.0 + cosine, .kind = Sigmoid::linear, .at_margin = 0.0};
    return up(physics.body_rotation(torso_)[zz]);
  }

  double speed_;
  int torso_, velocity_, acceleration_, gyro_, first_toe_;
};

/// Takes out the walls, the ball and its target.
inline void remove_arena(std::string& xml) {
  for (const char* wall : {"px", "py", "nx", "ny"}) remove_element(xml, "geom", "wall_" + std::string(wall));
  remove_element(xml, "body", "ball");
  remove_element(xml, "site", "target");
}

/// Takes out the height field, and the sensors that look at it.
inline void remove_terrain(std::string& xml) {
  remove_element(xml, "geom", "terrain");
  remove_all(xml, "rangefinder");
}

/// `size`: the three numbers of the floor's geom.
inline void resize_floor(std::string& xml, const std::string& size) {
  replace(xml, "size=\"15 15 .5\"", "size=\"" + size + "\"");
}

}  // namespace penstock::dmc
