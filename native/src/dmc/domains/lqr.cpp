/// Linear systems: a chain of masses on springs, to which the file has the surroundings.
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "penstock/dmc/task.hpp"
#include "penstock/dmc/text.hpp"

namespace penstock::dmc {
namespace {

/// The springs are drawn with each episode, so that a seed alone decides it; dm_control draws them with an environment.
class Lqr final : public Task {
 public:
  void equip(Physics& physics) const override { physics.own(&mjModel::jnt_stiffness, std::size_t(physics.model.njnt)); }
  void begin(Physics& physics, Rng& rng) const override {
    const auto masses = std::size_t(physics.model.nq);
    rng.uniform(15.0, 25.0, std::span(physics.model.jnt_stiffness, masses));
    const std::span positions(physics.data().qpos, masses);
    rng.standard_normal(positions);
    const double norm = length(positions);
    for (double& position : positions) position = std::sqrt(2.0) * position / norm;
  }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions()).put(physics.velocities());
  }
  double reward(const Physics& physics) const override {
    return 1.0 - (0.5 * squared_length(physics.positions()) + 0.5 * squared_length(physics.controls()) * 0.1);
  }
  bool ends(const Physics& physics) const override {
    std::array<double, 2 * most_masses> state;
    Writer(state).put(physics.positions()).put(physics.velocities());
    return length(std::span(state).first(std::size_t(physics.model.nq + physics.model.nv))) < 1e-6;
  }

 private:
  static constexpr std::size_t most_masses = 6;
};

template <int Masses, int Motors>
std::string with_masses(std::string xml) {
  std::string bodies, ends, motors, tendons;
  for (int mass = 0; mass < Masses; ++mass) {
    const auto named = [mass](const std::string& kind, int add = 0) {
      return kind + "_" + std::to_string(mass + add) + "\"";
    };
    bodies += "<body name=\"" + named("body") + " pos=\".25 0 " + (mass == 0 ? ".1" : "0") + "\"><joint name=\"" +
              named("joint") + " stiffness=\"20\"/><geom name=\"" + named("geom") + "/><site name=\"" + named("site") + "/>";
    ends += "</body>";
    if (mass < Motors) motors += "<motor name=\"" + named("motor") + " joint=\"" + named("joint") + "/>";
    if (mass < Masses - 1)
      tendons += "<spatial name=\"" + named("tendon") + "><site site=\"" + named("site") + "/><site site=\"" +
                 named("site", 1) + "/></spatial>";
  }
  insert_before(xml, "</worldbody>", bodies + ends);
  insert_before(xml, "</mujoco>", "<actuator>" + motors + "</actuator><tendon>" + tendons + "</tendon>");
  return xml;
}

TaskPointer make(const mjModel&) { return std::make_unique<Lqr>(); }

}  // namespace

std::vector<Listed> lqr() {
  return {{"dmc/lqr-lqr_2_1", "lqr.xml", 1, 4, 0, make, with_masses<2, 1>, true},
          {"dmc/lqr-lqr_6_2", "lqr.xml", 2, 12, 0, make, with_masses<6, 2>, true}};
}

}  // namespace penstock::dmc
