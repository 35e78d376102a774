/// BipedalWalker-v3 and BipedalWalkerHardcore-v3, equal to gymnasium.envs.box2d.bipedal_walker step for step, where
/// every episode is the first of a new environment: Gymnasium's keeps its world, and with it an order of contacts that
/// depends on the episodes before.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "penstock/env/variants.hpp"
#include "robot.hpp"

namespace penstock_box2d {

/// All that the world of a walker is built from besides the generator.
struct WalkerBuilt {
  bool hardcore = false;
  static constexpr std::size_t count = 1;
  void save(Writer& out) const { out.put(hardcore); }
  void load(Reader& in) { hardcore = in.whole(1) != 0; }
};

class BipedalWalker : public Robot<BipedalWalker, WalkerBuilt, 5, 4> {
 public:
  static constexpr penstock::Info info{.id = "BipedalWalker-v3", .max_episode_steps = 1600, .reward_threshold = 300.0};
  static constexpr auto action = penstock::Box<4>::symmetric({1.0, 1.0, 1.0, 1.0});
  static constexpr auto observation = [] {
    constexpr double pi = std::numbers::pi;
    std::array<double, 24> low{-pi, -5, -5, -5, -pi, -5, -pi, -5, -0.0, -pi, -5, -pi, -5, -0.0}, high{};
    for (std::size_t i = 0; i < 14; ++i) high[i] = i == 8 || i == 13 ? 5.0 : -low[i];
    for (std::size_t i = 14; i < 24; ++i) low[i] = -1.0, high[i] = 1.0;
    return penstock::Box<24>::between(low, high);
  }();

  struct Config {
    bool hardcore = false;
    PENSTOCK_FIELDS(Config, hardcore)
  } config;

  static auto variants() {
    return std::array<penstock::Variant<Config>, 2>{
        {{info, {}},
         {{.id = "BipedalWalkerHardcore-v3", .max_episode_steps = 2000, .reward_threshold = 300.0}, {.hardcore = true}}}};
  }

  static constexpr std::size_t lidar_rays = 10, contact_room = 512, extras = 1 + lidar_rays;

  void reset(penstock::Rng& rng) {
    begin(rng, {config.hardcore});
    advance({});
    shaping = measure();
  }

  penstock::Step step(std::span<const float, 4> chosen) {
    std::array<float, 4> torque;
    std::copy(chosen.begin(), chosen.end(), torque.begin());
    advance(torque);
    const double before = std::exchange(shaping, measure());
    // NumPy computes with float32 from the first cost on.
    float reward = float(shaping - before);
    for (float share : torque) reward -= float(0.00035 * most_torque) * std::clamp(std::abs(share), 0.0f, 1.0f);
    const double x = world->bodies[0]->GetPosition().x;
    penstock::Step result{.reward = reward};
    if (world->crashed || x < 0) result.reward = -100.0, result.terminated = true;
    if (x > (terrain_length - terrain_grass) * stride) result.terminated = true;
    return result;
  }

  void observe(std::span<float, 24> out) const {
    const b2Body& hull = *world->bodies[0];
    const b2Vec2& velocity = hull.GetLinearVelocity();
    std::size_t next = 0;
    const auto put = [&](double value) { out[next++] = float(value); };
    put(hull.GetAngle());
    put(2.0 * hull.GetAngularVelocity() / frames_per_second);
    put(0.3 * velocity.x * (view_width / scale) / frames_per_second);
    put(0.3 * velocity.y * (view_height / scale) / frames_per_second);
    for (std::size_t leg = 0; leg < 2; ++leg) {
      const b2RevoluteJoint &hip = *world->joints[2 * leg], &knee = *world->joints[2 * leg + 1];
      put(hip.GetJointAngle()), put(hip.GetJointSpeed() / hip_speed);
      put(knee.GetJointAngle() + 1.0), put(knee.GetJointSpeed() / knee_speed);
      put(world->on_ground[2 * leg + 2] ? 1.0 : 0.0);
    }
    for (float fraction : lidar) put(fraction);
  }

  void build(penstock::Rng& rng) {
    world = std::make_unique<World>(-10.0);
    lay_terrain(rng);
    for (int cloud = 0; cloud < terrain_length / 20; ++cloud)  // drawn behind the walker, from the same generator
      for (int draw = 0; draw < 1 + 2 * 5; ++draw) rng.next();
    const auto point = [](double x, double y) { return vec(x / scale, y / scale); };
    const double x = stride * start_pad / 2, y = terrain_height + 2 * leg_height;
    b2Body* hull = world->add_body(
        vec(x, y), 0.0, polygon({point(-30, 9), point(6, 9), point(34, 1), point(34, -8), point(-30, -8)}),
        {.density = 5.0, .friction = 0.1, .category = 0x0020, .mask = 0x001});
    hull->ApplyForceToCenter(vec(rng.uniform(-5.0, 5.0), 0.0), true);
    for (int side : {-1, 1}) {
      const Surface skin{.density = 1.0, .friction = 0.2, .category = 0x0020, .mask = 0x001};
      b2Body* leg = world->add_body(vec(x, y - leg_height / 2 - leg_down), side * 0.05,
                                    box(leg_width / 2, leg_height / 2), skin);
      join(hull, leg, leg_down, side, -0.8, 1.1);
      b2Body* lower = world->add_body(vec(x, y - leg_height * 3 / 2 - leg_down), side * 0.05,
                                      box(0.8 * leg_width / 2, leg_height / 2), skin);
      join(leg, lower, -leg_height / 2, 1, -1.6, -0.1);
    }
  }

  void save_extras(Writer& out) const {
    out.put(shaping);
    for (float fraction : lidar) out.put(fraction);
  }
  void load_extras(Reader& in) {
    shaping = in.number();
    for (float& fraction : lidar) fraction = in.real();
  }
  void loaded() {}

 private:
  static constexpr int terrain_length = 200, terrain_grass = 10, start_pad = 20;
  static constexpr double stride = 14 / scale, terrain_height = view_height / scale / 4, ground_friction = 2.5;
  static constexpr double leg_down = -8 / scale, leg_width = 8 / scale, leg_height = 34 / scale;
  static constexpr double most_torque = 80, hip_speed = 4, knee_speed = 6, lidar_range = 160 / scale;

  void join(b2Body* upper, b2Body* lower, double height, int speed, double least, double most) {
    b2RevoluteJointDef joint;
    joint.bodyA = upper, joint.bodyB = lower;
    joint.localAnchorA = vec(0.0, height), joint.localAnchorB = vec(0.0, leg_height / 2);
    joint.enableMotor = joint.enableLimit = true;
    joint.maxMotorTorque = float(most_torque), joint.motorSpeed = float(speed);
    joint.lowerAngle = float(least), joint.upperAngle = float(most);
    world->add_joint(joint);
  }

  void add_ground(const b2Shape& shape) {
    b2BodyDef still;
    World::add_ground(world->engine.CreateBody(&still), shape, ground_friction);
  }

  void lay_terrain(penstock::Rng& rng) {
    enum Kind : std::int64_t { grass, stump, stairs, pit, kinds };
    std::int64_t kind = grass, counter = start_pad, steps = 0, width = 0, rise = 0;
    bool begins = false;
    double velocity = 0.0, y = terrain_height, level = 0.0;
    std::array<double, terrain_length> heights;
    for (int i = 0; i < terrain_length; ++i) {
      const double x = i * stride;
      if (kind == grass && !begins) {
        const double off = terrain_height - y;
        velocity = 0.8 * velocity + 0.01 * (off > 0.0 ? 1.0 : off < 0.0 ? -1.0 : 0.0);
        if (i > start_pad) velocity += rng.uniform(-1.0, 1.0) / scale;
        y += velocity;
      } else if (kind == pit && begins) {
        counter = rng.integers(3, 5);
        for (double off : {0.0, stride * double(counter)})
          add_ground(polygon({vec(x + off, y), vec(x + stride + off, y), vec(x + stride + off, y - 4 * stride),
                              vec(x + off, y - 4 * stride)}));
        counter += 2;
        level = y;
      } else if (kind == pit) {
        y = level;
        if (counter > 1) y -= 4 * stride;
      } else if (kind == stump && begins) {
        counter = rng.integers(1, 3);
        const double side = double(counter) * stride;
        add_ground(polygon({vec(x, y), vec(x + side, y), vec(x + side, y + side), vec(x, y + side)}));
      } else if (kind == stairs && begins) {
        rise = rng.random() > 0.5 ? 1 : -1;
        width = rng.integers(4, 5);
        steps = rng.integers(3, 5);
        level = y;
        for (std::int64_t s = 0; s < steps; ++s) {
          const double from = x + double(s * width) * stride, to = x + double((1 + s) * width) * stride;
          const double top = y + double(s * rise) * stride, bottom = y + double(-1 + s * rise) * stride;
          add_ground(polygon({vec(from, top), vec(to, top), vec(to, bottom), vec(from, bottom)}));
        }
        counter = steps * width;
      } else if (kind == stairs) {
        const double done = double(steps * width - counter - rise) / double(width);
        y = level + (done * double(rise)) * stride;
      }
      begins = false;
      heights[std::size_t(i)] = y;
      if (--counter == 0) {
        counter = rng.integers(terrain_grass / 2, terrain_grass);
        kind = kind == grass && built.hardcore ? rng.integers(1, kinds) : std::int64_t(grass);
        begins = true;
      }
    }
    for (int i = 0; i < terrain_length - 1; ++i)
      add_ground(edge(vec(i * stride, heights[std::size_t(i)]), vec((i + 1) * stride, heights[std::size_t(i + 1)])));
  }

  void advance(const std::array<float, 4>& torque) {
    for (std::size_t i = 0; i < 4; ++i) {
      const double speed = i % 2 == 0 ? hip_speed : knee_speed;
      b2RevoluteJoint& joint = *world->joints[i];
      joint.SetMotorSpeed(float(torque[i] > 0.0f ? speed : torque[i] < 0.0f ? -speed : 0.0));
      joint.SetMaxMotorTorque(float(most_torque) * std::clamp(std::abs(torque[i]), 0.0f, 1.0f));
    }
    world->step();
    const b2Vec2 from = world->bodies[0]->GetPosition();
    for (std::size_t i = 0; i < lidar_rays; ++i) {
      const double angle = 1.5 * double(i) / 10.0;
      lidar[i] = distance(from, vec(from.x + std::sin(angle) * lidar_range, from.y - std::cos(angle) * lidar_range));
    }
  }

  /// The nearest ground along a ray, as the fraction of its length.
  struct Nearest final : b2RayCastCallback {
    float fraction = 1.0f;
    float ReportFixture(b2Fixture* fixture, const b2Vec2&, const b2Vec2&, float at) override {
      if ((fixture->GetFilterData().categoryBits & 1) == 0) return -1.0f;
      return fraction = at;
    }
  };
  float distance(b2Vec2 from, b2Vec2 to) const {
    Nearest nearest;
    world->engine.RayCast(&nearest, from, to);
    return nearest.fraction;
  }

  /// Returns how good the state is: a reward is its change, less the torques.
  [[nodiscard]] double measure() const {
    const b2Body& hull = *world->bodies[0];
    return 130 * double(hull.GetPosition().x) / scale - 5.0 * std::abs(double(hull.GetAngle()));
  }

  std::array<float, lidar_rays> lidar{};
  double shaping = 0.0;
};

}  // namespace penstock_box2d
