/// A world of Box2D with one robot in it, whose state is saved as a row of numbers.
///
/// Saved is what the next step depends on and building the same world anew does not bring back: motion, impulses, the
/// boxes that the broad phase keeps around moving bodies, and contacts in their order. A world is loaded into one that
/// was just built. Static bodies never move, and each moving body has one fixture.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <vector>

#include <Box2D/Box2D.h>

#include <penstock/library.hpp>

namespace penstock_box2d {

/// A vector of Box2D out of doubles, each rounded to float32 as the package's Python binding does it.
inline b2Vec2 vec(double x, double y) { return {float(x), float(y)}; }

/// Numbers one after the other in a row of fixed size.
class Writer {
 public:
  explicit Writer(std::span<double> out) : out_(out) {}
  void put(double value) {
    if (used_ == out_.size()) throw std::length_error("the world has more contacts than a saved state has room for");
    out_[used_++] = value;
  }
  void put(b2Vec2 value) { put(double(value.x)), put(double(value.y)); }
  void put_word(std::uint64_t word) { put(double(word >> 32)), put(double(word & 0xffffffffu)); }
  ~Writer() {
    for (; used_ < out_.size(); ++used_) out_[used_] = 0.0;
  }

 private:
  std::span<double> out_;
  std::size_t used_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const double> in) : in_(in) {}
  double number() {
    if (used_ == in_.size()) throw std::invalid_argument("it ends in the middle of a world");
    return in_[used_++];
  }
  float real() { return float(number()); }
  b2Vec2 vector() {
    const float x = real();
    return {x, real()};
  }
  /// Returns a whole number of at most `limit`.
  std::uint64_t whole(std::uint64_t limit) {
    const double value = number();
    if (!(value >= 0.0 && value <= double(limit))) throw std::invalid_argument("it has a count that is out of range");
    return std::uint64_t(value);
  }
  std::uint64_t word() {
    const std::uint64_t high = whole(0xffffffffu);
    return high << 32 | whole(0xffffffffu);
  }

 private:
  std::span<const double> in_;
  std::size_t used_ = 0;
};

/// The surface that a body touches the world with.
struct Surface {
  double density, friction;
  std::uint16_t category, mask;
};

class World final : public b2ContactListener {
 public:
  static constexpr std::size_t most_bodies = 8;

  explicit World(double gravity) : engine((fill_tables(), vec(0.0, gravity))) { engine.SetContactListener(this); }
  World(const World&) = delete;

  b2World engine;
  std::vector<b2Body*> bodies;  ///< Moving ones, the hull first.
  std::vector<b2RevoluteJoint*> joints;
  bool crashed = false;                         ///< True once the hull has touched anything.
  std::array<bool, most_bodies> on_ground{};  ///< Each body's: true if its last contact to change began.

  void BeginContact(b2Contact* contact) override { note(contact, true); }
  void EndContact(b2Contact* contact) override { note(contact, false); }

  b2Body* add_body(b2Vec2 position, double angle, const b2PolygonShape& shape, const Surface& surface) {
    b2BodyDef at;
    at.type = b2_dynamicBody, at.position = position, at.angle = float(angle);
    b2Body* body = engine.CreateBody(&at);
    b2FixtureDef fixture;
    fixture.shape = &shape;
    fixture.density = float(surface.density), fixture.friction = float(surface.friction);
    fixture.filter.categoryBits = surface.category, fixture.filter.maskBits = surface.mask;
    body->CreateFixture(&fixture);
    bodies.push_back(body);
    body->SetUserData(reinterpret_cast<void*>(bodies.size()));
    return body;
  }

  static void add_ground(b2Body* body, const b2Shape& shape, double friction) {
    b2FixtureDef fixture;
    fixture.shape = &shape, fixture.friction = float(friction);
    body->CreateFixture(&fixture);
  }

  /// Adds a joint. As in the Python binding, its angle counts from the one that the bodies have now.
  void add_joint(b2RevoluteJointDef joint) {
    joint.referenceAngle = joint.bodyB->GetAngle() - joint.bodyA->GetAngle();
    joints.push_back(static_cast<b2RevoluteJoint*>(engine.CreateJoint(&joint)));
  }

  void step() { engine.Step(float(1.0 / 50), 6 * 30, 2 * 30); }

  void save(Writer& out) const {
    out.put(engine.m_inv_dt0), out.put(crashed);
    const b2Contact* oldest = engine.m_contactManager.m_contactList;
    while (oldest != nullptr && oldest->m_next != nullptr) oldest = oldest->m_next;
    out.put(engine.m_contactManager.m_contactCount);
    for (const b2Contact* contact = oldest; contact != nullptr; contact = contact->m_prev) save_contact(out, *contact);
    for (std::size_t i = 0; i < bodies.size(); ++i) out.put(on_ground[i]), save_body(out, *bodies[i]);
    for (const b2RevoluteJoint* joint : joints) {
      for (float value : {joint->m_impulse.x, joint->m_impulse.y, joint->m_impulse.z, joint->m_motorImpulse,
                          joint->m_motorSpeed, joint->m_maxMotorTorque})
        out.put(value);
      out.put(joint->m_limitState);
    }
  }

  /// Loads into a world that was just built as the saved one was.
  void load(Reader& in) {
    engine.m_inv_dt0 = in.real(), crashed = in.whole(1) != 0;
    engine.m_flags &= ~b2World::e_newFixture;
    engine.m_contactManager.m_broadPhase.m_moveCount = 0;
    for (std::uint64_t left = in.whole(10'000); left > 0; --left) load_contact(in);
    for (std::size_t i = 0; i < bodies.size(); ++i) on_ground[i] = in.whole(1) != 0, load_body(in, *bodies[i]);
    for (b2RevoluteJoint* joint : joints) {
      for (float* value : {&joint->m_impulse.x, &joint->m_impulse.y, &joint->m_impulse.z, &joint->m_motorImpulse,
                           &joint->m_motorSpeed, &joint->m_maxMotorTorque})
        *value = in.real();
      joint->m_limitState = b2LimitState(in.whole(3));
    }
  }

 private:
  /// Box2D fills these tables when it first needs them: here, once, before threads could do so at the same time.
  static void fill_tables() {
    static const bool filled = [] {
      b2BlockAllocator allocator;
      b2Contact::InitializeRegisters();
      return b2Contact::s_initialized = true;
    }();
    static_cast<void>(filled);
  }

  void note(b2Contact* contact, bool begins) {
    for (const b2Fixture* fixture : {contact->GetFixtureA(), contact->GetFixtureB()}) {
      const auto number = reinterpret_cast<std::uintptr_t>(fixture->GetBody()->GetUserData());
      if (number == 0) continue;
      on_ground[number - 1] = begins;
      if (number == 1 && begins) crashed = true;
    }
  }

  static void save_contact(Writer& out, const b2Contact& contact) {
    for (const b2Fixture* fixture : {contact.m_fixtureA, contact.m_fixtureB}) out.put(fixture->m_proxies[0].proxyId);
    out.put(contact.m_flags);
    // The next step computes the rest of a manifold again.
    out.put(contact.m_manifold.pointCount);
    for (int32 i = 0; i < contact.m_manifold.pointCount; ++i) {
      const b2ManifoldPoint& point = contact.m_manifold.points[i];
      out.put(point.id.key), out.put(point.normalImpulse), out.put(point.tangentImpulse);
    }
  }
  void load_contact(Reader& in) {
    b2ContactManager& manager = engine.m_contactManager;
    const auto proxy = [&] {
      const auto id = int32(in.whole(std::uint64_t(manager.m_broadPhase.m_tree.m_nodeCapacity - 1)));
      void* found = manager.m_broadPhase.GetUserData(id);
      if (found == nullptr) throw std::invalid_argument("it has a contact with nothing");
      return found;
    };
    void *first = proxy(), *second = proxy();
    const int32 before = manager.m_contactCount;
    manager.AddPair(first, second);
    if (manager.m_contactCount != before + 1) throw std::invalid_argument("it has a contact that cannot be");
    b2Contact& contact = *manager.m_contactList;
    contact.m_flags = std::uint32_t(in.whole(0xffffffffu));
    contact.m_manifold.pointCount = int32(in.whole(b2_maxManifoldPoints));
    for (int32 i = 0; i < contact.m_manifold.pointCount; ++i) {
      b2ManifoldPoint& point = contact.m_manifold.points[i];
      point.id.key = std::uint32_t(in.whole(0xffffffffu));
      point.normalImpulse = in.real(), point.tangentImpulse = in.real();
    }
  }

  static const b2AABB& fat_box(const b2Body& body) {
    const b2BroadPhase& phase = body.m_world->m_contactManager.m_broadPhase;
    return phase.GetFatAABB(body.m_fixtureList->m_proxies[0].proxyId);
  }

  static void save_body(Writer& out, const b2Body& body) {
    out.put(body.m_flags), out.put(body.m_sleepTime);
    out.put(body.m_sweep.c0), out.put(body.m_sweep.a0), out.put(body.m_sweep.c), out.put(body.m_sweep.a);
    out.put(body.m_linearVelocity), out.put(body.m_angularVelocity);
    out.put(fat_box(body).lowerBound), out.put(fat_box(body).upperBound);
  }
  static void load_body(Reader& in, b2Body& body) {
    body.m_flags = std::uint16_t(in.whole(0xffffu)), body.m_sleepTime = in.real();
    body.m_sweep.c0 = in.vector(), body.m_sweep.a0 = in.real(), body.m_sweep.c = in.vector(), body.m_sweep.a = in.real();
    body.m_linearVelocity = in.vector(), body.m_angularVelocity = in.real();
    body.m_force.SetZero(), body.m_torque = 0.0f;
    body.SynchronizeTransform();
    b2DynamicTree& tree = body.m_world->m_contactManager.m_broadPhase.m_tree;
    const int32 leaf = body.m_fixtureList->m_proxies[0].proxyId;
    tree.RemoveLeaf(leaf);
    tree.m_nodes[leaf].aabb.lowerBound = in.vector(), tree.m_nodes[leaf].aabb.upperBound = in.vector();
    tree.InsertLeaf(leaf);
  }
};

inline b2PolygonShape polygon(std::initializer_list<b2Vec2> points) {
  b2PolygonShape shape;
  shape.Set(points.begin(), int32(points.size()));
  return shape;
}
inline b2PolygonShape box(double half_width, double half_height) {
  b2PolygonShape shape;
  shape.SetAsBox(float(half_width), float(half_height));
  return shape;
}
inline b2EdgeShape edge(b2Vec2 from, b2Vec2 to) {
  b2EdgeShape shape;
  shape.Set(from, to);
  return shape;
}

}  // namespace penstock_box2d
