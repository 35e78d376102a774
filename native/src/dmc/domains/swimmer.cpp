/// Swimmers of six and fifteen links: the file has the head, to which the other links are added in its text.
#include <array>
#include <cstdio>
#include <span>
#include <string>

#include "penstock/dmc/task.hpp"
#include "penstock/dmc/text.hpp"

namespace penstock::dmc {
namespace {

class Swimmer final : public Task {
 public:
  explicit Swimmer(const mjModel& model)
      : head_(body_of(model, "head")), nose_(geom_of(model, "nose")), target_(geom_of(model, "target")),
        first_(model.sensor_adr[sensor_of(model, "head_vel")]) {}

  void equip(Physics& physics) const override { physics.own(&mjModel::geom_pos, std::size_t(3 * physics.model.ngeom)); }
  void begin(Physics& physics, Rng& rng) const override {
    physics.randomize_joints(rng);
    const double box = rng.random() < 0.2 ? 0.3 : 2.0;
    rng.uniform(-box, box, std::span(physics.model.geom_pos + 3 * target_, 2));
  }
  void observe(const Physics& physics, Writer& out) const override {
    out.put(physics.positions(3)).put(to_target(physics));
    // A velocimeter and a gyroscope a link: what is in the plane.
    for (int at = first_; at < physics.model.nsensordata; at += 6) {
      const double* velocity = physics.data().sensordata + at;
      out.put(velocity[0]).put(velocity[1]).put(velocity[5]);
    }
  }
  double reward(const Physics& physics) const override {
    const double size = physics.model.geom_size[3 * target_];
    return Tolerance{.high = size, .margin = 5 * size, .kind = Sigmoid::long_tail}(length(to_target(physics)));
  }

 private:
  std::array<double, 2> to_target(const Physics& physics) const {
    const double* geoms = physics.data().geom_xpos;
    const Vector way =
        in_frame(between(geoms + 3 * target_, geoms + 3 * nose_), physics.body_rotation(head_));
    return {way[0], way[1]};
  }

  int head_, nose_, target_, first_;
};

template <int Links>
std::string with_links(std::string xml) {
  std::array<char, 64> range;
  std::snprintf(range.data(), range.size(), "%.17g %.17g", -360.0 / Links, 360.0 / Links);
  std::string bodies, ends, motors, sensors;
  for (int link = 0; link < Links - 1; ++link) {
    const std::string number = "_" + std::to_string(link) + "\"";
    bodies += "<body name=\"segment" + number + " pos=\"0 .1 0\"><geom class=\"visual\" name=\"visual" + number +
              "/><geom class=\"inertial\" name=\"inertial" + number + "/><site name=\"site" + number +
              "/><joint name=\"joint" + number + " range=\"" + range.data() + "\"/>";
    ends += "</body>";
    motors += "<motor name=\"motor" + number + " joint=\"joint" + number + "/>";
    sensors += "<velocimeter name=\"velocimeter" + number + " site=\"site" + number + "/><gyro name=\"gyro" + number +
               " site=\"site" + number + "/>";
  }
  insert_behind(xml, "<site name=\"head\"/>", bodies + ends);
  insert_before(xml, "</mujoco>", "<actuator>" + motors + "</actuator><sensor>" + sensors + "</sensor>");
  return xml;
}

TaskPointer make(const mjModel& model) { return std::make_unique<Swimmer>(model); }

}  // namespace

std::vector<Listed> swimmer() {
  return {{"dmc/swimmer-swimmer6", "swimmer.xml", 5, 25, 0.03, make, with_links<6>},
          {"dmc/swimmer-swimmer15", "swimmer.xml", 14, 61, 0.03, make, with_links<15>}};
}

}  // namespace penstock::dmc
