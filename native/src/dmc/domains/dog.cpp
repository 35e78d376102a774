/// The dog, of whose file the ball's parts are taken out where a task has none.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <string>

#include "penstock/dmc/task.hpp"
#include "penstock/dmc/text.hpp"

namespace penstock::dmc {
namespace {

class Dog : public Task {
 public:
  Dog(const mjModel& model, double speed)
      : speed_(speed), torso_(body_of(model, "torso")), pelvis_(body_of(model, "pelvis")), skull_(body_of(model, "skull")),
        velocity_(sensor_of(model, "torso_linvel")) {
    constexpr std::array names{"accelerometer", "velocimeter", "gyro",   "foot_L", "foot_R", "hand_L",
                               "hand_R",        "palm_L",      "palm_R", "sole_L", "sole_R"};
    for (std::size_t i = 0; i < names.size(); ++i) sensors_[i] = sensor_of(model, names[i]);
    Physics standing(model, 1);
    standing.reset();
    torso_height_ = standing.body_position(torso_)[2] * 0.9;
    pelvis_height_ = standing.body_position(pelvis_)[2] * 0.9;
    weight_ = -model.opt.gravity[2] * model.body_subtreemass[torso_];
  }

  void begin(Physics& physics, Rng& rng) const override {
    physics.reset();
    mjData& data = physics.data();
    const double azimuth = rng.uniform(0.0, 2.0 * std::numbers::pi);
    data.qpos[3] = std::cos(azimuth / 2), data.qpos[4] = data.qpos[5] = 0.0, data.qpos[6] = std::sin(azimuth / 2);
    for (const int way : {0, 1, 5}) data.qvel[way] = 2.0 * rng.standard_normal();
    for (int actuator = 0; actuator < physics.model.nu; ++actuator) {
      const double* range = physics.model.actuator_ctrlrange + 2 * actuator;
      data.act[actuator] = rng.uniform(range[0], range[1]);
    }
  }

  void observe(const Physics& physics, Writer& out) const override {
    const mjModel& model = physics.model;
    const mjData& data = physics.data();
    for (int joint = 0; joint < model.njnt; ++joint)
      if (model.jnt_type[joint] == mjJNT_HINGE) out.put(data.qpos[model.jnt_qposadr[joint]]);
    for (int joint = 0; joint < model.njnt; ++joint)
      if (model.jnt_type[joint] == mjJNT_HINGE) out.put(data.qvel[model.jnt_dofadr[joint]]);
    out.put(physics.body_position(torso_)[2]).put(physics.body_position(pelvis_)[2]);
    for (const int body : {skull_, torso_, pelvis_}) out.put(std::span(physics.body_rotation(body) + zx, 3));
    out.put(own_velocity(physics));
    for (const int sensor : sensors_) out.put(physics.sensor(sensor));
    out.put(std::span<const double>(data.act, std::size_t(model.na)));
  }

  double reward(const Physics& physics) const override {
    const Tolerance torso{.low = torso_height_, .high = unlimited, .margin = torso_height_};
    const Tolerance pelvis{.low = pelvis_height_, .high = unlimited, .margin = pelvis_height_};
    const double cosine = std::cos(30.0 * (std::numbers::pi / 180.0));
    const Tolerance upright{.low = cosine, .high = unlimited, .margin = cosine + 1.0, .kind = Sigmoid::linear, .at_margin = 0.0};
    const Tolerance touch{.low = weight_, .high = unlimited, .margin = weight_, .kind = Sigmoid::linear, .at_margin = 0.9};
    double product = torso(physics.body_position(torso_)[2]) * pelvis(physics.body_position(pelvis_)[2]);
    for (const int body : {skull_, torso_, pelvis_}) product *= upright(physics.body_rotation(body)[zz]);
    double force = 0.0;
    for (const int sensor : std::span(sensors_).last(4)) force += physics.sensor_value(sensor);
    product *= touch(force);
    if (speed_ == 0.0) return product;
    const Tolerance fast{.low = speed_, .high = 2 * speed_, .margin = std::max(1.0, speed_), .kind = Sigmoid::linear,
                         .at_margin = 0.0};
    return product * ((4.0 * fast(own_velocity(physics)[0]) + 1.0) / 5.0);
  }

 private:
  Vector own_velocity(const Physics& physics) const {
    const auto velocity = physics.sensor(velocity_);
    return in_frame({velocity[0], velocity[1], velocity[2]}, physics.body_rotation(torso_));
  }

  double speed_;
  int torso_, pelvis_, skull_, velocity_;
  std::array<int, 11> sensors_;  ///< in the order in which they are observed
  double torso_height_, pelvis_height_, weight_;
};

/// A fetching dog stands, and is rewarded for its mouth at the ball and the ball at the target.
class Fetch final : public Dog {
 public:
  explicit Fetch(const mjModel& model)
      : Dog(model, 0.0), ball_root_(joint_of(model, "ball_root")), ball_(geom_of(model, "ball")),
        floor_(geom_of(model, "floor")), target_(geom_of(model, "target")), head_(site_of(model, "head")),
        upper_(site_of(model, "upper_bite")), lower_(site_of(model, "lower_bite")) {}

  /// The ball flies towards the middle.
  void begin(Physics& physics, Rng& rng) const override {
    Dog::begin(physics, rng);
    const mjModel& model = physics.model;
    const double radius = 0.75 * model.geom_size[3 * floor_], azimuth = rng.uniform(0.0, 2.0 * std::numbers::pi);
    double* ball = physics.data().qpos + model.jnt_qposadr[ball_root_];
    ball[0] = radius * std::sin(azimuth), ball[1] = radius * std::cos(azimuth), ball[2] = 0.05;
    double* velocity = physics.data().qvel + model.jnt_dofadr[ball_root_];
    velocity[2] = std::sqrt(2.0 * -model.opt.gravity[2] * rng.uniform(0.0, 3.0));
    const double speed = rng.uniform(0.0, 5.0);
    velocity[0] = speed * (-std::sin(azimuth) + 0.05 * rng.standard_normal());
    velocity[1] = speed * (-std::cos(azimuth) + 0.05 * rng.standard_normal());
  }

  void observe(const Physics& physics, Writer& out) const override {
    Dog::observe(physics, out);
    const mjData& data = physics.data();
    const double *head = data.site_xpos + 3 * head_, *frame = data.site_xmat + 9 * head_;
    std::array<double, 6> of_head, of_ball;  // angular, then linear
    mj_objectVelocity(&physics.model, &data, mjOBJ_SITE, head_, of_head.data(), 0);
    mj_objectVelocity(&physics.model, &data, mjOBJ_GEOM, ball_, of_ball.data(), 0);
    out.put(in_frame(between(data.geom_xpos + 3 * ball_, head), frame));
    out.put(in_frame(between(of_ball.data() + 3, of_head.data() + 3), frame));
    out.put(in_frame(between(data.geom_xpos + 3 * target_, head), frame));
  }

  double reward(const Physics& physics) const override {
    const mjModel& model = physics.model;
    const double* ball = physics.data().geom_xpos + 3 * ball_;
    const double *sites = physics.data().site_xpos, *target = physics.data().geom_xpos + 3 * target_;
    const double to_mouth = 0.5 * (length(between(ball, sites + 3 * upper_)) + length(between(ball, sites + 3 * lower_)));
    const double to_target = length(between(ball, target)), size = model.geom_size[3 * target_];
    const Tolerance bites{.high = model.site_size[3 * upper_], .margin = 2.0, .kind = Sigmoid::reciprocal};
    const Tolerance brings{.high = size, .margin = model.geom_size[3 * floor_], .kind = Sigmoid::reciprocal};
    const double reaches = to_target < 2 * size ? 1.0 : (6.0 * bites(to_mouth) + 1.0) / 7.0;
    return Dog::reward(physics) * reaches * ((brings(to_target) + 1.0) / 2.0);
  }

 private:
  int ball_root_, ball_, floor_, target_, head_, upper_, lower_;
};

/// As wide as a dog of that speed runs in an episode.
template <int Size>
std::string without_ball(std::string xml) {
  replace(xml, "size=\"10 10 0.1\"", "size=\"" + std::to_string(Size) + " " + std::to_string(Size) + " .1\"");
  remove_element(xml, "body", "ball");
  remove_element(xml, "geom", "target");
  for (const char* camera : {"ball", "head"}) remove_element(xml, "camera", camera);
  for (const char* wall : {"px", "nx", "py", "ny"}) remove_element(xml, "geom", "wall_" + std::string(wall));
  return xml;
}

template <int Speed>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Dog>(model, Speed);
}

}  // namespace

std::vector<Listed> dog() {
  constexpr auto file = "dog.xml";
  return {{"dmc/dog-stand", file, 38, 223, 0.015, make<0>, without_ball<15>},
          {"dmc/dog-walk", file, 38, 223, 0.015, make<1>, without_ball<15>},
          {"dmc/dog-trot", file, 38, 223, 0.015, make<3>, without_ball<45>},
          {"dmc/dog-run", file, 38, 223, 0.015, make<9>, without_ball<135>},
          {"dmc/dog-fetch", file, 38, 232, 0.015,
           [](const mjModel& model) -> TaskPointer { return std::make_unique<Fetch>(model); }}};
}

}  // namespace penstock::dmc
