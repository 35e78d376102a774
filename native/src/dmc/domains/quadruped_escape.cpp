/// The quadruped that is to leave a bowl, whose ground is another in each episode.
#include <cmath>
#include <numbers>
#include <span>
#include <string>

#include "penstock/dmc/quadruped.hpp"
#include "penstock/dmc/terrain.hpp"

namespace penstock::dmc {
namespace {

class Escape final : public Quadruped {
 public:
  explicit Escape(const mjModel& model)
      : Quadruped(model, 0.0), radius_(model.hfield_size[0]), workspace_(site_of(model, "workspace")),
        first_ray_(model.sensor_adr[sensor_of(model, "rf_00")]),
        terrain_(std::size_t(2.0 * radius_ / bump_meters), std::size_t(model.hfield_nrow[0])) {}

  void equip(Physics& physics) const override {
    physics.own_heights();
    physics.drawn.resize(terrain_.bumps());
    physics.apply_drawn = [this](Physics& changed) { terrain_.write(changed.drawn, changed.model.hfield_data); };
  }
  void begin(Physics& physics, Rng& rng) const override {
    rng.uniform(0.15, 1.0, physics.drawn);
    physics.apply_drawn(physics);
    Quadruped::begin(physics, rng);
  }
  void observe(const Physics& physics, Writer& out) const override {
    Quadruped::observe(physics, out);
    const double* torso = physics.body_position(torso_);
    for (const double value : in_frame({torso[0], torso[1], torso[2]}, physics.body_rotation(torso_))) out.put(-value);
    const std::span distances(physics.data().sensordata + first_ray_, rays);
    for (const double distance : distances) out.put(distance == -1.0 ? 1.0 : std::tanh(distance));  // -1: it meets nothing
  }
  double reward(const Physics& physics) const override {
    const Tolerance away{.low = radius_, .high = unlimited, .margin = radius_, .kind = Sigmoid::linear, .at_margin = 0.0};
    const double distance = length(std::span(physics.data().site_xpos + 3 * workspace_, 3));
    return upright(physics, std::cos(20.0 * (std::numbers::pi / 180.0))) * away(distance);
  }

 private:
  static constexpr std::size_t rays = 20;
  static constexpr double bump_meters = 2.0;
  double radius_;
  int workspace_, first_ray_;
  Terrain terrain_;
};

std::string in_a_bowl(std::string xml) {
  remove_arena(xml);
  resize_floor(xml, "40 40 .5");
  return xml;
}

}  // namespace

std::vector<Listed> quadruped_escape() {
  return {{"dmc/quadruped-escape", "quadruped.xml", 12, 101, 0.02,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Escape>(model); }, in_a_bowl}};
}

}  // namespace penstock::dmc
