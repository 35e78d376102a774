/// LunarLander-v3 with four choices and with two throttles, equal to gymnasium.envs.box2d.lunar_lander step for step.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "robot.hpp"

namespace penstock_box2d {

/// All that the world of a lander is built from besides the generator.
struct LanderBuilt {
  double gravity = -10.0;
  bool wind = false;
  static constexpr std::size_t count = 2;
  void save(Writer& out) const { out.put(gravity), out.put(wind); }
  void load(Reader& in) { gravity = in.number(), wind = in.whole(1) != 0; }
};

template <bool Continuous>
class Lander : public Robot<Lander<Continuous>, LanderBuilt, 3, 2> {
 public:
  static constexpr penstock::Info info{.id = Continuous ? "LunarLanderContinuous-v3" : "LunarLander-v3",
                                       .max_episode_steps = 1000,
                                       .reward_threshold = 200.0};
  static constexpr auto action = [] {
    if constexpr (Continuous) return penstock::Box<2>::symmetric({1.0, 1.0});
    else return penstock::Discrete<4>{};
  }();
  using Action = typename std::remove_const_t<decltype(action)>::Argument;
  static constexpr auto observation = penstock::Box<8>::between(
      {-2.5, -2.5, -10.0, -10.0, -2 * std::numbers::pi, -10.0, -0.0, -0.0},
      {2.5, 2.5, 10.0, 10.0, 2 * std::numbers::pi, 10.0, 1.0, 1.0});

  struct Config {
    double gravity = -10.0;
    bool enable_wind = false;
    double wind_power = 15.0, turbulence_power = 1.5;
    PENSTOCK_FIELDS(Config, gravity, enable_wind, wind_power, turbulence_power)
    [[nodiscard]] const char* problem() const {
      if (!(gravity > -12.0 && gravity < 0.0)) return "gravity must be between -12 and 0";
      const auto usable = [](double power) { return std::abs(power) <= 1e6; };
      return usable(wind_power) && usable(turbulence_power) ? nullptr : "wind_power and turbulence_power are at most 1e6";
    }
  } config;

  static constexpr std::size_t contact_room = 33 * 10, extras = 3;

  void reset(penstock::Rng& rng) {
    this->begin(rng, {config.gravity, config.enable_wind});
    shaping = 0.0;
    advance(rng, 0.0, 0.0);
    shaping = measure();
  }

  penstock::Step step(Action chosen, penstock::Rng& rng) {
    double main = 0.0, side = 0.0;
    if constexpr (Continuous) {
      const double throttle = std::clamp(chosen[0], -1.0f, 1.0f), lateral = std::clamp(chosen[1], -1.0f, 1.0f);
      if (throttle > 0.0) main = (throttle + 1.0) * 0.5;
      if (std::abs(lateral) > 0.5) side = lateral;
    } else {
      main = chosen == 2 ? 1.0 : 0.0;
      side = chosen == 1 ? -1.0 : chosen == 3 ? 1.0 : 0.0;
    }
    advance(rng, main, side);
    const double before = std::exchange(shaping, measure());
    penstock::Step result{.reward = shaping - before - main * 0.30 - std::abs(side) * 0.03};
    if (this->world->crashed || std::abs(state[0]) >= 1.0) result.reward = -100.0, result.terminated = true;
    if (!lander().IsAwake()) result.reward = 100.0, result.terminated = true;
    return result;
  }

  void observe(std::span<float, 8> out) const { std::copy(state.begin(), state.end(), out.begin()); }

  void build(penstock::Rng& rng) {
    this->world = std::make_unique<World>(this->built.gravity);
    World& made = *this->world;
    std::array<double, chunks + 1> height;
    rng.uniform(0.0, high / 2, height);
    for (int i = chunks / 2 - 2; i <= chunks / 2 + 2; ++i) height[std::size_t(i)] = pad;
    b2BodyDef still;
    b2Body* moon = made.engine.CreateBody(&still);
    World::add_ground(moon, edge({0.0f, 0.0f}, vec(wide, 0.0)), 0.2);
    const auto corner = [&](int i) {
      const double left = height[std::size_t(i == 0 ? chunks : i - 1)];
      return vec(wide / (chunks - 1) * i, 0.33 * (left + height[std::size_t(i)] + height[std::size_t(i + 1)]));
    };
    for (int i = 0; i < chunks - 1; ++i) World::add_ground(moon, edge(corner(i), corner(i + 1)), 0.1);

    const auto point = [](double x, double y) { return vec(x / scale, y / scale); };
    b2Body* hull = made.add_body(
        vec(wide / 2, high), 0.0,
        polygon({point(-14, 17), point(-17, 0), point(-17, -10), point(17, -10), point(17, 0), point(14, 17)}),
        {.density = 5.0, .friction = 0.1, .category = 0x0010, .mask = 0x001});
    const double x = rng.uniform(-1000.0, 1000.0);
    hull->ApplyForceToCenter(vec(x, rng.uniform(-1000.0, 1000.0)), true);
    wind_index = torque_index = 0;
    if (this->built.wind) wind_index = rng.integers(-9999, 9999), torque_index = rng.integers(-9999, 9999);
    for (int i : {-1, 1}) {
      b2Body* leg = made.add_body(vec(wide / 2 - i * 20 / scale, high), i * 0.05, box(2 / scale, 8 / scale),
                                  {.density = 1.0, .friction = 0.2, .category = 0x0020, .mask = 0x001});
      b2RevoluteJointDef joint;
      joint.bodyA = hull, joint.bodyB = leg;
      joint.localAnchorB = vec(i * 20 / scale, 18 / scale);
      joint.enableMotor = joint.enableLimit = true;
      joint.maxMotorTorque = 40.0f, joint.motorSpeed = float(0.3 * i);
      joint.lowerAngle = float(i < 0 ? 0.9 - 0.5 : -0.9), joint.upperAngle = float(i < 0 ? 0.9 : -0.9 + 0.5);
      made.add_joint(joint);
    }
  }

  void save_extras(Writer& out) const { out.put(shaping), out.put(double(wind_index)), out.put(double(torque_index)); }
  void load_extras(Reader& in) {
    shaping = in.number();
    wind_index = std::int64_t(in.number()), torque_index = std::int64_t(in.number());
  }
  void loaded() { look(); }

 private:
  static constexpr int chunks = 11;
  static constexpr double wide = view_width / scale, high = view_height / scale, pad = high / 4;

  b2Body& lander() const { return *this->world->bodies[0]; }

  static double gust(std::int64_t index) {
    return std::tanh(std::sin(0.02 * double(index)) + std::sin(std::numbers::pi * 0.01 * double(index)));
  }

  /// One frame with the main engine at `main` (0 or 0.5 to 1) and the side engines at `side` (0 or ±0.5 to ±1).
  void advance(penstock::Rng& rng, double main, double side) {
    b2Body& body = lander();
    const World& now = *this->world;
    if (config.enable_wind && !(now.on_ground[1] || now.on_ground[2])) {
      body.ApplyForceToCenter(vec(gust(wind_index++) * config.wind_power, 0.0), true);
      body.ApplyTorque(float(gust(torque_index++) * config.turbulence_power), true);
    }
    const double tip_x = std::sin(double(body.GetAngle())), tip_y = std::cos(double(body.GetAngle()));
    const double first = rng.uniform(-1.0, 1.0) / scale, second = rng.uniform(-1.0, 1.0) / scale;
    if (main > 0.0) {
      const double along = 4 / scale + 2 * first;
      const double x = tip_x * along + -tip_y * second, y = -tip_y * along - tip_x * second;
      const b2Vec2 at = vec(body.GetPosition().x + x, body.GetPosition().y + y);
      body.ApplyLinearImpulse(vec(-x * 13.0 * main, -y * 13.0 * main), at, true);
    }
    if (side != 0.0) {
      const double power = std::abs(side), away = 3 * second + std::copysign(1.0, side) * 12 / scale;
      const double x = tip_x * first + -tip_y * away, y = -tip_y * first - tip_x * away;
      const b2Vec2 at = vec(body.GetPosition().x + x - tip_x * 17 / scale, body.GetPosition().y + y + tip_y * 14 / scale);
      body.ApplyLinearImpulse(vec(-x * 0.6 * power, -y * 0.6 * power), at, true);
    }
    this->world->step();
    look();
  }

  void look() {
    const b2Body& body = lander();
    const b2Vec2 &place = body.GetPosition(), &velocity = body.GetLinearVelocity();
    state = {(place.x - wide / 2) / (wide / 2),
             (place.y - (pad + 18 / scale)) / (high / 2),
             velocity.x * (wide / 2) / frames_per_second,
             velocity.y * (high / 2) / frames_per_second,
             body.GetAngle(),
             20.0 * body.GetAngularVelocity() / frames_per_second,
             this->world->on_ground[1] ? 1.0 : 0.0,
             this->world->on_ground[2] ? 1.0 : 0.0};
  }

  /// Returns how good the state is: a reward is its change.
  [[nodiscard]] double measure() const {
    return -100 * std::sqrt(state[0] * state[0] + state[1] * state[1]) -
           100 * std::sqrt(state[2] * state[2] + state[3] * state[3]) - 100 * std::abs(state[4]) + 10 * state[6] +
           10 * state[7];
  }

  std::array<double, 8> state{};  ///< As observed, before it is rounded to float32.
  double shaping = 0.0;
  std::int64_t wind_index = 0, torque_index = 0;
};

using LunarLander = Lander<false>;
using LunarLanderContinuous = Lander<true>;

}  // namespace penstock_box2d
