/// The manipulator, which brings or inserts a ball or a peg, and the stacker: the same arm and hand in a plane.
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

constexpr std::array arm_joints{"arm_root", "arm_shoulder", "arm_elbow", "arm_wrist",
                                "finger",   "fingertip",    "thumb",     "thumbtip"};
constexpr std::size_t finger_joint = 4, thumb_joint = 6;

class PlanarArm : public Task {
 public:
  explicit PlanarArm(const mjModel& model)
      : hand_(body_of(model, "hand")), grasp_(site_of(model, "grasp")), first_touch_(sensor_of(model, "palm_touch")) {
    for (std::size_t i = 0; i < arm_.size(); ++i) arm_[i] = joint_of(model, arm_joints[i]);
  }

  void observe(const Physics& physics, Writer& out) const override {
    for (const int joint : arm_) {
      const double angle = physics.data().qpos[physics.model.jnt_qposadr[joint]];
      out.put(std::sin(angle)).put(std::cos(angle));
    }
    for (const int joint : arm_) out.put(velocity(physics, joint));
    for (int sensor = first_touch_; sensor < first_touch_ + 5; ++sensor) out.put(std::log1p(physics.sensor_value(sensor)));
    put_pose(physics, hand_, out);
  }

 protected:
  static double velocity(const Physics& physics, int joint) { return physics.data().qvel[physics.model.jnt_dofadr[joint]]; }
  static double& position(Physics& physics, int joint) { return physics.data().qpos[physics.model.jnt_qposadr[joint]]; }

  /// In the plane: x, z, and the two numbers of the orientation that are not 0.
  static void put_pose(const Physics& physics, int body, Writer& out) {
    const double *place = physics.body_position(body), *orientation = physics.data().xquat + 4 * body;
    out.put(place[0]).put(place[2]).put(orientation[0]).put(orientation[2]);
  }
  static double distance(const Physics& physics, int site, int other) {
    const double* sites = physics.data().site_xpos;
    return length(between(sites + 3 * site, sites + 3 * other));
  }

  void draw_arm(Physics& physics, Rng& rng) const {
    const mjModel& model = physics.model;
    for (const int joint : arm_) {
      const double* range = model.jnt_range + 2 * joint;
      position(physics, joint) = model.jnt_limited[joint] ? rng.uniform(range[0], range[1])
                                                          : rng.uniform(-std::numbers::pi, std::numbers::pi);
    }
    position(physics, arm_[finger_joint]) = position(physics, arm_[thumb_joint]);
  }

  std::array<int, arm_joints.size()> arm_;
  int hand_, grasp_, first_touch_;
};

class Manipulator final : public PlanarArm {
 public:
  Manipulator(const mjModel& model, bool peg, bool inserts)
      : PlanarArm(model), peg_(peg), object_(body_of(model, peg ? "peg" : "ball")),
        target_(body_of(model, peg ? "target_peg" : "target_ball")),
        receptacle_(inserts ? body_of(model, peg ? "slot" : "cup") : -1) {
    const std::string name = peg ? "peg" : "ball";
    joints_ = {joint_of(model, (name + "_x").c_str()), joint_of(model, (name + "_z").c_str()),
               joint_of(model, (name + "_y").c_str())};
    if (peg) {
      pairs_ = {{{site_of(model, "peg_grasp"), grasp_}, {site_of(model, "peg_pinch"), site_of(model, "pinch")},
                 {site_of(model, "peg"), site_of(model, "target_peg")},
                 {site_of(model, "target_peg_tip"), site_of(model, "peg_tip")}}};
    } else {
      pairs_[0] = {site_of(model, "ball"), site_of(model, "target_ball")};
    }
  }

  void equip(Physics& physics) const override {
    physics.own(&mjModel::body_pos, std::size_t(3 * physics.model.nbody));
    physics.own(&mjModel::body_quat, std::size_t(4 * physics.model.nbody));
  }

  void begin(Physics& physics, Rng& rng) const override {
    do {
      draw_arm(physics, rng);
      const double x = rng.uniform(-0.4, 0.4), z = rng.uniform(0.1, 0.4);
      const double limit = receptacle_ >= 0 ? std::numbers::pi / 3 : std::numbers::pi, angle = rng.uniform(-limit, limit);
      if (receptacle_ >= 0) put(physics.model, receptacle_, x, z, angle);
      put(physics.model, target_, x, z, angle);
      draw_object(physics, rng, {x, z, angle});
      physics.forward_without_actuators();
    } while (physics.data().ncon > 0);
  }

  void observe(const Physics& physics, Writer& out) const override {
    PlanarArm::observe(physics, out);
    put_pose(physics, object_, out);
    for (const int joint : joints_) out.put(velocity(physics, joint));
    put_pose(physics, target_, out);
  }

  double reward(const Physics& physics) const override {
    std::array<double, 4> near{};
    const Tolerance close{.high = 0.01, .margin = 0.01 * 2};
    for (std::size_t i = 0; i < (peg_ ? 4u : 1u); ++i) near[i] = close(distance(physics, pairs_[i][0], pairs_[i][1]));
    if (!peg_) return near[0];
    return std::max((near[2] + near[3]) / 2.0, (near[0] + near[1]) / 2.0 / 3.0);
  }

 private:
  static void put(mjModel& model, int body, double x, double z, double angle) {
    model.body_pos[3 * body] = x, model.body_pos[3 * body + 2] = z;
    model.body_quat[4 * body] = std::cos(angle / 2), model.body_quat[4 * body + 2] = std::sin(angle / 2);
  }

  /// One in ten in the hand, one in ten at the target.
  void draw_object(Physics& physics, Rng& rng, const Vector& target) const {
    const double kind = rng.random();
    Vector place = target;
    if (kind < 0.1) {
      physics.forward_without_actuators();
      const double *site = physics.data().site_xpos + 3 * grasp_, *rotation = physics.data().site_xmat + 9 * grasp_;
      place = {site[0], site[2], std::numbers::pi - std::atan2(rotation[zx], rotation[xx])};
    } else if (kind >= 0.2) {
      for (std::size_t i = 0; i < 3; ++i)
        place[i] = rng.uniform(i == 0 ? -0.5 : 0.0, std::array{0.5, 0.7, 2 * std::numbers::pi}[i]);
      physics.data().qvel[physics.model.jnt_dofadr[joints_[0]]] = rng.uniform(-5.0, 5.0);
    }
    for (std::size_t i = 0; i < 3; ++i) position(physics, joints_[i]) = place[i];
  }

  bool peg_;
  int object_, target_, receptacle_;
  std::array<int, 3> joints_;  ///< along x, along z, and about y
  std::array<std::array<int, 2>, 4> pairs_{};
};

class Stacker final : public PlanarArm {
 public:
  explicit Stacker(const mjModel& model)
      : PlanarArm(model), target_(body_of(model, "target")), target_site_(site_of(model, "target")),
        size_(model.geom_size[3 * geom_of(model, "target")]) {
    for (int box = 0; mj_name2id(&model, mjOBJ_BODY, ("box" + std::to_string(box)).c_str()) >= 0; ++box) {
      const std::string name = "box" + std::to_string(box);
      boxes_.push_back({body_of(model, name.c_str()), site_of(model, name.c_str()), joint_of(model, (name + "_x").c_str()),
                        joint_of(model, (name + "_y").c_str()), joint_of(model, (name + "_z").c_str())});
    }
  }

  void equip(Physics& physics) const override { physics.own(&mjModel::body_pos, std::size_t(3 * physics.model.nbody)); }

  void begin(Physics& physics, Rng& rng) const override {
    do {
      draw_arm(physics, rng);
      const std::int64_t height = 2 * rng.integers(0, std::int64_t(boxes_.size())) + 1;
      physics.model.body_pos[3 * target_ + 2] = size_ * double(height);
      physics.model.body_pos[3 * target_] = rng.uniform(-0.37, 0.37);
      for (const Box& box : boxes_) {
        position(physics, box.x) = rng.uniform(0.1, 0.3);
        position(physics, box.z) = rng.uniform(0.0, 0.7);
        position(physics, box.y) = rng.uniform(0.0, 2.0 * std::numbers::pi);
      }
      physics.forward_without_actuators();
    } while (physics.data().ncon > 0);
  }

  void observe(const Physics& physics, Writer& out) const override {
    PlanarArm::observe(physics, out);
    for (const Box& box : boxes_) put_pose(physics, box.body, out);
    for (const Box& box : boxes_)
      out.put(velocity(physics, box.x)).put(velocity(physics, box.y)).put(velocity(physics, box.z));
    out.put(physics.body_position(target_)[0]).put(physics.body_position(target_)[2]);
  }

  double reward(const Physics& physics) const override {
    double nearest = unlimited;
    for (const Box& box : boxes_) nearest = std::min(nearest, distance(physics, box.site, target_site_));
    const Tolerance close{.margin = 2 * size_}, far{.low = 0.1, .high = unlimited, .margin = 0.01};
    return close(nearest) * far(distance(physics, grasp_, target_site_));
  }

 private:
  struct Box {
    int body, site, x, y, z;
  };
  std::vector<Box> boxes_;
  int target_, target_site_;
  double size_;
};

template <bool Peg, bool Inserts>
std::string with_props(std::string xml) {
  for (const char* ball : {"ball", "target_ball"})
    if (Peg) remove_element(xml, "body", ball);
  for (const char* peg : {"peg", "target_peg"})
    if (!Peg) remove_element(xml, "body", peg);
  if (Peg || !Inserts) remove_element(xml, "body", "cup");
  if (!Peg || !Inserts) remove_element(xml, "body", "slot");
  return xml;
}

template <int Boxes>
std::string with_boxes(std::string xml) {
  for (int box = Boxes; box < 4; ++box) remove_element(xml, "body", "box" + std::to_string(box));
  return xml;
}

template <bool Peg, bool Inserts>
TaskPointer make(const mjModel& model) {
  return std::make_unique<Manipulator>(model, Peg, Inserts);
}

TaskPointer make_stacker(const mjModel& model) { return std::make_unique<Stacker>(model); }

}  // namespace

std::vector<Listed> manipulator() {
  constexpr auto file = "manipulator.xml";
  return {{"dmc/manipulator-bring_ball", file, 5, 44, 0.01, make<false, false>, with_props<false, false>},
          {"dmc/manipulator-bring_peg", file, 5, 44, 0.01, make<true, false>, with_props<true, false>},
          {"dmc/manipulator-insert_ball", file, 5, 44, 0.01, make<false, true>, with_props<false, true>},
          {"dmc/manipulator-insert_peg", file, 5, 44, 0.01, make<true, true>, with_props<true, true>}};
}

std::vector<Listed> stacker() {
  return {{"dmc/stacker-stack_2", "stacker.xml", 5, 49, 0.01, make_stacker, with_boxes<2>},
          {"dmc/stacker-stack_4", "stacker.xml", 5, 63, 0.01, make_stacker, with_boxes<4>}};
}

}  // namespace penstock::dmc
