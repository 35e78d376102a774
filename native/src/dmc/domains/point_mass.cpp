#include <array>
#include <cmath>
#include <span>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class PointMass final : public Task {
 public:
  PointMass(const mjModel& model, bool random_gains)
      : random_gains_(random_gains), mass_(geom_of(model, "pointmass")), target_(geom_of(model, "target")) {}

  void equip(Physics& physics) const override {
    if (random_gains_) physics.own(&mjModel::wrap_prm, std::size_t(physics.model.nwrap));
  }
  void begin(Physics& physics, Rng& rng) const override {
    physics.randomize_joints(rng);
    if (!random_gains_) return;
    std::array<double, 2> first = direction(rng), second;
    do second = direction(rng);
    while (std::abs(first[0] * second[0] + first[1] * second[1]) > 0.9);
    double* gains = physics.model.wrap_prm;
    gains[0] = first[0], gains[1] = first[1], gains[2] = second[0], gains[3] = second[1];
  }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions()).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    const double* geoms = physics.data().geom_xpos;
    const double size = physics.model.geom_size[3 * target_];
    const double near = Tolerance{.high = size, .margin = size}(length(between(geoms + 3 * target_, geoms + 3 * mass_)));
    return near * small_control(physics);
  }

 private:
  static std::array<double, 2> direction(Rng& rng) {
    std::array<double, 2> drawn;
    rng.standard_normal(drawn);
    const double norm = length(drawn);
    return {drawn[0] / norm, drawn[1] / norm};
  }

  bool random_gains_;
  int mass_, target_;
};

template <bool RandomGains>
TaskPointer make(const mjModel& model) {
  return std::make_unique<PointMass>(model, RandomGains);
}

}  // namespace

std::vector<Listed> point_mass() {
  return {{"dmc/point_mass-easy", "point_mass.xml", 2, 4, 0, make<false>},
          {"dmc/point_mass-hard", "point_mass.xml", 2, 4, 0, make<true>}};
}

}  // namespace penstock::dmc
