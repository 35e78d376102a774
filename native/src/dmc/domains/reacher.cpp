#include <array>
#include <cmath>
#include <numbers>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class Reacher final : public Task {
 public:
  Reacher(const mjModel& model, double target_size)
      : size_(target_size), target_(geom_of(model, "target")), finger_(geom_of(model, "finger")) {}

  void equip(Physics& physics) const override { physics.own(&mjModel::geom_pos, std::size_t(3 * physics.model.ngeom)); }
  void begin(Physics& physics, Rng& rng) const override {
    physics.randomize_joints(rng);
    const double angle = rng.uniform(0.0, 2.0 * std::numbers::pi), radius = rng.uniform(0.05, 0.20);
    physics.model.geom_pos[3 * target_] = radius * std::sin(angle);
    physics.model.geom_pos[3 * target_ + 1] = radius * std::cos(angle);
  }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions()).put(to_target(physics)).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    return Tolerance{.high = size_ + physics.model.geom_size[3 * finger_]}(length(to_target(physics)));
  }

 private:
  std::array<double, 2> to_target(const Physics& physics) const {
    const double* geoms = physics.data().geom_xpos;
    const Vector way = between(geoms + 3 * target_, geoms + 3 * finger_);
    return {way[0], way[1]};
  }

  double size_;
  int target_, finger_;
};

}  // namespace

std::vector<Listed> reacher() {
  return {{"dmc/reacher-easy", "reacher.xml", 2, 6, 0,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Reacher>(model, 0.05); }},
          {"dmc/reacher-hard", "reacher.xml", 2, 6, 0,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Reacher>(model, 0.015); }}};
}

}  // namespace penstock::dmc
