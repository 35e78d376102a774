/// The finger that spins a body on a hinge, or turns its tip to a target.
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

using Plane = std::array<double, 2>;  // x and z

class Finger : public Task {
 public:
  explicit Finger(const mjModel& model)
      : proximal_(sensor_of(model, "proximal")), distal_(sensor_of(model, "distal")),
        proximal_velocity_(sensor_of(model, "proximal_velocity")), distal_velocity_(sensor_of(model, "distal_velocity")),
        hinge_velocity_(sensor_of(model, "hinge_velocity")), tip_(sensor_of(model, "tip")),
        target_(sensor_of(model, "target")), spinner_(sensor_of(model, "spinner")), top_(sensor_of(model, "touchtop")),
        bottom_(sensor_of(model, "touchbottom")) {}

  void begin(Physics& physics, Rng& rng) const override {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      physics.randomize_joints(rng);
      physics.forward_without_actuators();
      if (physics.data().ncon == 0) return;
    }
    throw std::runtime_error("no position without a contact in 1000 attempts");
  }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.sensor_value(proximal_)).put(physics.sensor_value(distal_)).put(from_spinner(physics, tip_));
    out.put(physics.sensor_value(proximal_velocity_)).put(physics.sensor_value(distal_velocity_)).put(hinge_velocity(physics));
    out.put(std::log1p(physics.sensor_value(top_))).put(std::log1p(physics.sensor_value(bottom_)));
  }

 protected:
  double hinge_velocity(const Physics& physics) const { return physics.sensor_value(hinge_velocity_); }
  Plane from_spinner(const Physics& physics, int sensor) const {
    const auto place = physics.sensor(sensor), center = physics.sensor(spinner_);
    return {place[0] - center[0], place[2] - center[2]};
  }

  int proximal_, distal_, proximal_velocity_, distal_velocity_, hinge_velocity_, tip_, target_, spinner_, top_, bottom_;
};

class Spin final : public Finger {
 public:
  explicit Spin(const mjModel& model) : Finger(model), hinge_(model.jnt_dofadr[joint_of(model, "hinge")]) {}

  void equip(Physics& physics) const override {
    physics.own(&mjModel::dof_damping, std::size_t(physics.model.nv));
    physics.model.dof_damping[hinge_] = 0.03;
  }
  double reward(const Physics& physics) const override { return hinge_velocity(physics) <= -15.0 ? 1.0 : 0.0; }

 private:
  int hinge_;
};

class Turn final : public Finger {
 public:
  Turn(const mjModel& model, double target_radius)
      : Finger(model), radius_(target_radius), hinge_(joint_of(model, "hinge")), cap_(geom_of(model, "cap1")),
        site_(site_of(model, "target")) {}

  void equip(Physics& physics) const override { physics.own(&mjModel::site_pos, std::size_t(3 * physics.model.nsite)); }
  void begin(Physics& physics, Rng& rng) const override {
    const double angle = rng.uniform(-std::numbers::pi, std::numbers::pi);
    const double* center = physics.data().xanchor + 3 * hinge_;
    const double* size = physics.model.geom_size + 3 * cap_;
    const double reach = size[0] + size[1] + size[2];
    physics.model.site_pos[3 * site_] = center[0] + reach * std::sin(angle);
    physics.model.site_pos[3 * site_ + 2] = center[2] + reach * std::cos(angle);
    Finger::begin(physics, rng);
  }
  void observe(const Physics& physics, Writer& out) const override {
    Finger::observe(physics, out);
    out.put(from_spinner(physics, target_)).put(distance(physics));
  }
  double reward(const Physics& physics) const override { return distance(physics) <= 0.0 ? 1.0 : 0.0; }

 private:
  double distance(const Physics& physics) const {
    const Plane target = from_spinner(physics, target_), tip = from_spinner(physics, tip_);
    return length(Plane{target[0] - tip[0], target[1] - tip[1]}) - radius_;
  }

  double radius_;
  int hinge_, cap_, site_;
};

}  // namespace

std::vector<Listed> finger() {
  return {{"dmc/finger-spin", "finger.xml", 2, 9, 0.02,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Spin>(model); }},
          {"dmc/finger-turn_easy", "finger.xml", 2, 12, 0.02,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Turn>(model, 0.07); }},
          {"dmc/finger-turn_hard", "finger.xml", 2, 12, 0.02,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Turn>(model, 0.03); }}};
}

}  // namespace penstock::dmc
