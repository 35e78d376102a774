/// Pendulums of one link and of two.
#include <array>
#include <cmath>
#include <numbers>
#include <span>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {
namespace {

class Acrobot final : public Task {
 public:
  Acrobot(const mjModel& model, bool sparse)
      : sparse_(sparse),
        upper_(body_of(model, "upper_arm")),
        lower_(body_of(model, "lower_arm")),
        target_(site_of(model, "target")),
        tip_(site_of(model, "tip")) {}

  void begin(Physics& physics, Rng& rng) const override {
    rng.uniform(-std::numbers::pi, std::numbers::pi, std::span(physics.data().qpos, 2));
  }
  void observe(const Physics& physics, Writer& out) const override {
    const double *upper = physics.body_rotation(upper_), *lower = physics.body_rotation(lower_);
    out.put(std::array{upper[xz], lower[xz], upper[zz], lower[zz]}).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    const double* sites = physics.data().site_xpos;
    const double distance = length(between(sites + 3 * target_, sites + 3 * tip_));
    return Tolerance{.high = physics.model.site_size[3 * target_], .margin = sparse_ ? 0.0 : 1.0}(distance);
  }

 private:
  bool sparse_;
  int upper_, lower_, target_, tip_;
};

class Pendulum final : public Task {
 public:
  explicit Pendulum(const mjModel& model) : pole_(body_of(model, "pole")) {}

  void begin(Physics& physics, Rng& rng) const override {
    physics.data().qpos[0] = rng.uniform(-std::numbers::pi, std::numbers::pi);
  }
  void observe(const Physics& physics, Writer& out) const override {
    const double* rotation = physics.body_rotation(pole_);
    out.put(rotation[zz]).put(rotation[xz]).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    const double eight_degrees = std::cos(8.0 * (std::numbers::pi / 180.0));
    return Tolerance{.low = eight_degrees, .high = 1.0}(physics.body_rotation(pole_)[zz]);
  }

 private:
  int pole_;
};

template <bool Sparse>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Acrobot>(model, Sparse);
}

}  // namespace

std::vector<Listed> acrobot() {
  return {{"dmc/acrobot-swingup", "acrobot.xml", 1, 6, 0, make<false>},
          {"dmc/acrobot-swingup_sparse", "acrobot.xml", 1, 6, 0, make<true>}};
}

std::vector<Listed> pendulum() {
  return {{"dmc/pendulum-swingup", "pendulum.xml", 1, 3, 0,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Pendulum>(model); }}};
}

}  // namespace penstock::dmc
