/// The quadruped on a plane, and where it fetches a ball.
#include <cmath>
#include <numbers>
#include <span>
#include <string>

#include "penstock/dmc/quadruped.hpp"

namespace penstock::dmc {
namespace {

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
  remove_arena(xml);
  remove_terrain(xml);
  resize_floor(xml, Move::floor);
  return xml;
}

std::string in_an_arena(std::string xml) {
  remove_terrain(xml);
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
