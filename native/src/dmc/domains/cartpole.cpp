/// The cart-pole: its model has one pole, and of two and three it is made by adding them to the file's text.
#include <algorithm>
#include <numbers>
#include <string>

#include "penstock/dmc/task.hpp"
#include "penstock/dmc/text.hpp"

namespace penstock::dmc {
namespace {

class Cartpole final : public Task {
 public:
  Cartpole(const mjModel& model, bool swings_up, bool sparse)
      : poles_(model.nq - 1), swings_up_(swings_up), sparse_(sparse), first_pole_(body_of(model, "pole_1")) {}

  void begin(Physics& physics, Rng& rng) const override {
    double* position = physics.data().qpos;
    if (swings_up_) {
      position[0] = 0.01 * rng.standard_normal();
      position[1] = std::numbers::pi + 0.01 * rng.standard_normal();
      for (int pole = 1; pole < poles_; ++pole) position[1 + pole] = 0.1 * rng.standard_normal();
    } else {
      position[0] = rng.uniform(-0.1, 0.1);
      for (int pole = 0; pole < poles_; ++pole) position[1 + pole] = rng.uniform(-0.034, 0.034);
    }
    for (int i = 0; i <= poles_; ++i) physics.data().qvel[i] = 0.01 * rng.standard_normal();
  }

  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions()[0]);
    for (int pole = 0; pole < poles_; ++pole) out.put(rotation(physics, pole)[zz]).put(rotation(physics, pole)[xz]);
    out.put(physics.velocities());
  }

  double reward(const Physics& physics) const override {
    const double cart = physics.positions()[0];
    if (sparse_) {
      double upright = 1.0;
      for (int pole = 0; pole < poles_; ++pole)
        upright *= Tolerance{.low = 0.995, .high = 1.0}(rotation(physics, pole)[zz]);
      return Tolerance{.low = -0.25, .high = 0.25}(cart) * upright;
    }
    double upright = 0.0, slow = 1.0;
    for (int pole = 0; pole < poles_; ++pole) {
      upright += (rotation(physics, pole)[zz] + 1.0) / 2.0;
      slow = std::min(slow, Tolerance{.margin = 5.0, .in_array = true}(physics.velocities()[std::size_t(1 + pole)]));
    }
    const double centered = (1.0 + Tolerance{.margin = 2.0}(cart)) / 2.0;
    return upright / poles_ * small_control(physics) * ((1.0 + slow) / 2.0) * centered;
  }

 private:
  const double* rotation(const Physics& physics, int pole) const { return physics.body_rotation(first_pole_ + pole); }

  int poles_;
  bool swings_up_, sparse_;
  int first_pole_;
};

template <bool SwingsUp, bool Sparse>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Cartpole>(model, SwingsUp, Sparse);
}

template <int Poles>
std::string with_poles(std::string xml) {
  std::string added, ends;
  for (int pole = 2; pole <= Poles; ++pole) {
    const std::string number = std::to_string(pole);
    added += "<body name=\"pole_" + number + "\" pos=\"0 0 1\" childclass=\"pole\"><joint name=\"hinge_" + number +
             "\"/><geom name=\"pole_" + number + "\"/>";
    ends += "</body>";
  }
  insert_behind(xml, "<geom name=\"pole_1\"/>", added + ends);
  return xml;
}

}  // namespace

std::vector<Listed> cartpole() {
  constexpr auto file = "cartpole.xml";
  return {{"dmc/cartpole-balance", file, 1, 5, 0, make<false, false>},
          {"dmc/cartpole-balance_sparse", file, 1, 5, 0, make<false, true>},
          {"dmc/cartpole-swingup", file, 1, 5, 0, make<true, false>},
          {"dmc/cartpole-swingup_sparse", file, 1, 5, 0, make<true, true>},
          {"dmc/cartpole-two_poles", file, 1, 8, 0, make<true, false>, with_poles<2>},
          {"dmc/cartpole-three_poles", file, 1, 11, 0, make<true, false>, with_poles<3>}};
}

}  // namespace penstock::dmc
