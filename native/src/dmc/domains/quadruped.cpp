/// The quadruped, of whose file the parts are taken out that a task does not have.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>

#include "penstock/dmc/task.hpp"
#include "penstock/dmc/text.hpp"

namespace penstock::dmc {
namespace {

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
  double upright(const Physics& physics) const {
    const Tolerance up{.low = 1.0, .high = unlimited, .margin = 2.0, .kind = Sigmoid::linear, .at_margin = 0.0};
    return up(physics.body_rotation(torso_)[zz]);
  }

  double speed_;
  int torso_, velocity_, acceleration_, gyro_, first_toe_;
};

/// A ball is to be brought to the middle of a walled floor.
class Fetch final : public Quadruped {
 public:
  explicit Fetch(const mjModel& model)
      : Quadruped(model, 0.0), ball_(body_of(model, "ball")), root_(joint_of(model, "root")),
        ball_root_(joint_of(model, "ball_root")), shape_(geom_of(model, "ball")), floor_(geom_of(model, "floor")),
        target_(site_of(model, "target")), workspace_(site_of(model, "workspace")) {}

  void begin(Physics& physics, Rng& rng) const override {
    const double azimuth = rng.uniform(0.0, 2.0 * std::numbers::pi), reach = 0.9 * physics.model.geom_size[3 * floor_];
    const double x = rng.uniform(-reach, reach), y = rng.uniform(-reach, reach);
    place(physics, x, y, {std::cos(azimuth / 2), 0.0, 0.0, std::sin(azimuth / 2)});
    double* ball = physics.data().qpos + physics.model.jnt_qposadr[ball_root_];
    rng.uniform(-reach, reach, std::span(ball, 2));
    ball[2] = 2.0;
    double* velocity = physics.data().qvel + physics.model.jnt_dofadr[ball_root_];
    velocity[0] = 5.0 * rng.standard_normal();
    velocity[1] = 5.0 * rng.standard_normal();
  }

  void observe(const Physics& physics, Writer& out) const override {
    Quadruped::observe(physics, out);
    const double* rotation = physics.body_rotation(torso_);
    const double* torso = physics.body_position(torso_);
    const double* ball = physics.data().qvel + physics.model.jnt_dofadr[ball_root_];
    const double* own = physics.data().qvel + physics.model.jnt_dofadr[root_];
    out.put(in_frame(between(physics.body_position(ball_), torso), rotation)).put(in_frame(between(ball, own), rotation));
    out.put(in_frame({ball[3], ball[4], ball[5]}, rotation));
    out.put(in_frame(between(physics.data().site_xpos + 3 * target_, torso), rotation));
  }

  double reward(const Physics& physics) const override {
    const mjModel& model = physics.model;
    const double arena = model.geom_size[3 * floor_] * std::sqrt(2.0);
    const double touch = model.site_size[3 * workspace_] + model.geom_size[3 * shape_];
    const Tolerance near{.high = touch, .margin = arena, .kind = Sigmoid::linear, .at_margin = 0.0};
    const Tolerance brought{.high = model.site_size[3 * target_], .margin = arena, .kind = Sigmoid::linear, .at_margin = 0.0};
    const double reaches = near(from_ball(physics, workspace_)), fetches = brought(from_ball(physics, target_));
    return upright(physics) * (reaches * (0.5 + 0.5 * fetches));
  }

 private:
  /// Horizontally.
  double from_ball(const Physics& physics, int site) const {
    const Vector way = between(physics.data().site_xpos + 3 * site, physics.body_position(ball_));
    return length(std::span(way).first(2));
  }

  int ball_, root_, ball_root_, shape_, floor_, target_, workspace_;
};

struct Walk {
  static constexpr double speed = 0.5;
  static constexpr auto floor = "10.0 10.0 .5";
};
struct Run {
  static constexpr double speed = 5.0;
  static constexpr auto floor = "100 100 .5";
};

template <class Move>
std::string on_a_plane(std::string xml) {
  for (const char* wall : {"px", "py", "nx", "ny"}) remove_element(xml, "geom", "wall_" + std::string(wall));
  remove_element(xml, "body", "ball");
  remove_element(xml, "site", "target");
  remove_element(xml, "geom", "terrain");
  remove_all(xml, "rangefinder");
  replace(xml, "size=\"15 15 .5\"", "size=\"" + std::string(Move::floor) + "\"");
  return xml;
}

std::string in_an_arena(std::string xml) {
  remove_element(xml, "geom", "terrain");
  remove_all(xml, "rangefinder");
  return xml;
}

template <class Move>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Quadruped>(model, Move::speed);
}

}  // namespace

std::vector<Listed> quadruped() {
  return {{"dmc/quadruped-walk", "quadruped.xml", 12, 78, 0.02, make<Walk>, on_a_plane<Walk>},
          {"dmc/quadruped-run", "quadruped.xml", 12, 78, 0.02, make<Run>, on_a_plane<Run>},
          {"dmc/quadruped-fetch", "quadruped.xml", 12, 90, 0.02,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Fetch>(model); }, in_an_arena}};
}

}  // namespace penstock::dmc
