#include <array>
#include <span>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class Fish final : public Task {
 public:
  Fish(const mjModel& model, bool swims)
      : swims_(swims), torso_(body_of(model, "torso")), mouth_(geom_of(model, "mouth")), target_(geom_of(model, "target")) {
    constexpr std::array names{"tail1",          "tail_twist",   "tail2",         "finright_roll",
                               "finright_pitch", "finleft_roll", "finleft_pitch"};
    for (std::size_t i = 0; i < names.size(); ++i) joints_[i] = model.jnt_qposadr[joint_of(model, names[i])];
  }

  void equip(Physics& physics) const override {
    if (swims_) physics.own(&mjModel::geom_pos, std::size_t(3 * physics.model.ngeom));
  }
  void begin(Physics& physics, Rng& rng) const override {
    const std::span orientation(physics.data().qpos + 3, 4);
    rng.standard_normal(orientation);
    const double norm = length(orientation);
    for (double& value : orientation) value /= norm;
    for (const int joint : joints_) physics.data().qpos[joint] = rng.uniform(-0.2, 0.2);
    if (!swims_) return;
    double* target = physics.model.geom_pos + 3 * target_;
    target[0] = rng.uniform(-0.4, 0.4);
    target[1] = rng.uniform(-0.4, 0.4);
    target[2] = rng.uniform(0.1, 0.3);
  }
  void observe(const Physics& physics, Writer& out) const override {
    for (const int joint : joints_) out.put(physics.positions()[std::size_t(joint)]);
    out.put(upright(physics));
    if (swims_) out.put(to_target(physics));
    out.put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    if (!swims_) return Tolerance{.low = 1.0, .high = 1.0, .margin = 1.0}(upright(physics));
    const double radii = physics.model.geom_size[3 * mouth_] + physics.model.geom_size[3 * target_];
    const double near = Tolerance{.high = radii, .margin = 2 * radii}(length(to_target(physics)));
    return (7.0 * near + 0.5 * (upright(physics) + 1.0)) / 8.0;
  }

 private:
  double upright(const Physics& physics) const { return physics.body_rotation(torso_)[zz]; }
  Vector to_target(const Physics& physics) const {
    const double* geoms = physics.data().geom_xpos;
    return in_frame(between(geoms + 3 * target_, geoms + 3 * mouth_), physics.data().geom_xmat + 9 * mouth_);
  }

  bool swims_;
  int torso_, mouth_, target_;
  std::array<int, 7> joints_;
};

template <bool Swims>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Fish>(model, Swims);
}

}  // namespace

std::vector<Listed> fish() {
  return {{"dmc/fish-upright", "fish.xml", 5, 21, 0.04, make<false>},
          {"dmc/fish-swim", "fish.xml", 5, 24, 0.04, make<true>}};
}

}  // namespace penstock::dmc
