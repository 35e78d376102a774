/// The iterations of an island's velocities, in fewer operations than Box2D's own and to the same bits.
///
/// Revolute joints are solved without virtual calls, and what does not change between iterations is computed once. An
/// iteration is a function of velocities and of the impulses that are clamped. Once these recur, all that is left is to
/// add what each iteration of the cycle adds to the joints' other impulses, which no iteration reads.
#pragma once

#include <array>
#include <cstring>

#include <Box2D/Dynamics/Contacts/b2ContactSolver.h>
#include <Box2D/Dynamics/Joints/b2RevoluteJoint.h>
#include <Box2D/Dynamics/b2Body.h>
#include <Box2D/Dynamics/b2Island.h>

namespace penstock_box2d {

/// A revolute joint during the iterations of one step: every expression is that of b2RevoluteJoint.
struct JointIteration {
  JointIteration() = default;
  JointIteration(b2RevoluteJoint& joint, const b2SolverData& data)
      : impulse(joint.m_impulse), motor_impulse(joint.m_motorImpulse), limit(joint.m_limitState),
        motor(joint.m_enableMotor && joint.m_limitState != e_equalLimits), motor_mass(joint.m_motorMass),
        motor_speed(joint.m_motorSpeed), most(data.step.dt * joint.m_maxMotorTorque), mA(joint.m_invMassA),
        mB(joint.m_invMassB), iA(joint.m_invIA), iB(joint.m_invIB), rA(joint.m_rA), rB(joint.m_rB), mass(joint.m_mass),
        a(&data.velocities[joint.m_indexA]), b(&data.velocities[joint.m_indexB]) {
    if (!joint.m_enableLimit) limit = e_inactiveLimit;
    inverse22 = mass.ex.x * mass.ey.y - mass.ey.x * mass.ex.y;
    if (inverse22 != 0.0f) inverse22 = 1.0f / inverse22;
    cross_yz = b2Cross(mass.ey, mass.ez);
    inverse33 = b2Dot(mass.ex, cross_yz);
    if (inverse33 != 0.0f) inverse33 = 1.0f / inverse33;
  }

  /// Returns whether this can stand for the joint's own solver.
  static bool can_be(const b2Joint& joint) {
    if (joint.m_type != e_revoluteJoint) return false;
    const auto& revolute = static_cast<const b2RevoluteJoint&>(joint);
    return revolute.m_invIA + revolute.m_invIB != 0.0f;
  }

  void store(b2RevoluteJoint& joint) const { joint.m_impulse = impulse, joint.m_motorImpulse = motor_impulse; }

  /// Iterates once; returns what was added to the impulse of the point.
  b2Vec2 solve() {
    b2Vec2 vA = a->v, vB = b->v;
    float wA = a->w, wB = b->w;
    if (motor) {
      const float before = motor_impulse;
      motor_impulse = b2Clamp(motor_impulse + -motor_mass * (wB - wA - motor_speed), -most, most);
      const float added = motor_impulse - before;
      wA -= iA * added, wB += iB * added;
    }
    const b2Vec2 apart = vB + b2Cross(wB, rB) - vA - b2Cross(wA, rA);
    b2Vec2 point;
    if (limit != e_inactiveLimit) {
      b2Vec3 added = -solve33({apart.x, apart.y, wB - wA});
      const float angular = impulse.z + added.z;
      if ((limit == e_atLowerLimit && angular < 0.0f) || (limit == e_atUpperLimit && angular > 0.0f)) {
        const b2Vec2 reduced = solve22(-apart + impulse.z * b2Vec2(mass.ez.x, mass.ez.y));
        added = {reduced.x, reduced.y, -impulse.z};
        impulse.z = 0.0f;
      } else {
        impulse.z += added.z;
      }
      point = {added.x, added.y};
      vA -= mA * point, wA -= iA * (b2Cross(rA, point) + added.z);
      vB += mB * point, wB += iB * (b2Cross(rB, point) + added.z);
    } else {
      point = solve22(-apart);
      vA -= mA * point, wA -= iA * b2Cross(rA, point);
      vB += mB * point, wB += iB * b2Cross(rB, point);
    }
    impulse.x += point.x, impulse.y += point.y;
    a->v = vA, a->w = wA, b->v = vB, b->w = wB;
    return point;
  }

  b2Vec3 impulse;
  float motor_impulse;

 private:
  b2Vec2 solve22(const b2Vec2& right) const {
    return {inverse22 * (mass.ey.y * right.x - mass.ey.x * right.y),
            inverse22 * (mass.ex.x * right.y - mass.ex.y * right.x)};
  }
  b2Vec3 solve33(const b2Vec3& right) const {
    return {inverse33 * b2Dot(right, cross_yz), inverse33 * b2Dot(mass.ex, b2Cross(right, mass.ez)),
            inverse33 * b2Dot(mass.ex, b2Cross(mass.ey, right))};
  }

  b2LimitState limit;
  bool motor;
  float motor_mass, motor_speed, most, mA, mB, iA, iB;
  b2Vec2 rA, rB;
  b2Mat33 mass;
  b2Vec3 cross_yz;
  float inverse22, inverse33;
  b2Velocity *a, *b;
};

class VelocitySolver {
 public:
  static constexpr int32 most_joints = 8, most_iterations = 180, most_values = 160;

  /// Makes all iterations; returns false, and does nothing, where an island is none that it knows.
  static bool solve(b2Island& island, b2ContactSolver& contacts, const b2SolverData& data) {
    if (island.m_jointCount > most_joints || data.step.velocityIterations > most_iterations) return false;
    if (3 * island.m_bodyCount + 2 * island.m_jointCount + 4 * island.m_contactCount > most_values) return false;
    for (int32 i = 0; i < island.m_jointCount; ++i)
      if (!JointIteration::can_be(*island.m_joints[i])) return false;
    VelocitySolver(island, contacts, data).iterate(data.step.velocityIterations);
    return true;
  }

 private:
  VelocitySolver(b2Island& island, b2ContactSolver& contacts, const b2SolverData& data)
      : island_(island), contacts_(contacts), count_(island.m_jointCount) {
    for (int32 i = 0; i < count_; ++i) joints_[std::size_t(i)] = {revolute(i), data};
  }

  void iterate(int32 iterations) {
    int32 kept_at = 0, keep_next = 0;
    for (int32 i = 0; i < iterations; ++i) {
      step(i);
      if (i > 0 && recurs()) {
        const int32 period = i - kept_at, left = iterations - 1 - i;
        skip(kept_at + 1, period, left - left % period);
        for (int32 rest = 0; rest < left % period; ++rest) step(0);
        break;
      }
      if (i == keep_next) {
        keep();
        kept_at = i, keep_next = i + i / 4 + 1;
      }
    }
    for (int32 i = 0; i < count_; ++i) joints_[std::size_t(i)].store(revolute(i));
  }

  void step(int32 i) {
    for (int32 j = 0; j < count_; ++j) added_[std::size_t(i)][std::size_t(j)] = joints_[std::size_t(j)].solve();
    if (contacts_.m_count > 0) contacts_.SolveVelocityConstraints();
  }

  /// Adds the impulses of `count` iterations, which repeat those from `first` on.
  void skip(int32 first, int32 period, int32 count) {
    for (int32 phase = 0, done = 0; done < count; ++done, phase = phase + 1 == period ? 0 : phase + 1) {
      for (int32 j = 0; j < count_; ++j) {
        const b2Vec2& more = added_[std::size_t(first + phase)][std::size_t(j)];
        joints_[std::size_t(j)].impulse.x += more.x, joints_[std::size_t(j)].impulse.y += more.y;
      }
    }
  }

  b2RevoluteJoint& revolute(int32 i) const { return static_cast<b2RevoluteJoint&>(*island_.m_joints[i]); }

  /// Calls visit for all that the next iteration depends on, until it returns false.
  template <class Visit>
  bool for_all(Visit&& visit) const {
    for (int32 i = 0; i < island_.m_bodyCount; ++i) {
      const b2Velocity& moves = island_.m_velocities[i];
      if (!visit(moves.w) || !visit(moves.v.x) || !visit(moves.v.y)) return false;
    }
    for (int32 i = 0; i < count_; ++i) {
      const JointIteration& joint = joints_[std::size_t(i)];
      if (!visit(joint.impulse.z) || !visit(joint.motor_impulse)) return false;
    }
    for (int32 i = 0; i < contacts_.m_count; ++i) {
      const b2ContactVelocityConstraint& contact = contacts_.m_velocityConstraints[i];
      for (int32 point = 0; point < contact.pointCount; ++point)
        if (!visit(contact.points[point].normalImpulse) || !visit(contact.points[point].tangentImpulse)) return false;
    }
    return true;
  }
  void keep() {
    float* next = kept_.data();
    for_all([&](float value) { return *next++ = value, true; });
  }
  /// Compares bits: 0 and -0 are two states, and a NaN is equal to itself.
  [[nodiscard]] bool recurs() const {
    const float* next = kept_.data();
    return for_all([&](float value) { return std::memcmp(&value, next++, sizeof value) == 0; });
  }

  b2Island& island_;
  b2ContactSolver& contacts_;
  int32 count_;
  std::array<JointIteration, most_joints> joints_;
  std::array<std::array<b2Vec2, most_joints>, most_iterations> added_;
  std::array<float, most_values> kept_;
};

}  // namespace penstock_box2d
