// A world of Box2D that Python builds and steps by plain calls: box2d_equality.py compares it with the package's.
#include <cmath>
#include <vector>

#include <Box2D/Box2D.h>

struct World {
  b2World world;
  std::vector<b2Body*> bodies;
  b2Body* ground;
};

extern "C" {

World* world_new(float gravity) {
  auto* made = new World{b2World({0.0f, gravity}), {}, nullptr};
  b2BodyDef at;
  made->ground = made->world.CreateBody(&at);
  return made;
}

void world_delete(World* world) { delete world; }

void add_edge(World* world, float x1, float y1, float x2, float y2, float friction) {
  b2EdgeShape shape;
  shape.Set({x1, y1}, {x2, y2});
  b2FixtureDef fixture;
  fixture.shape = &shape, fixture.friction = friction;
  world->ground->CreateFixture(&fixture);
}

void add_polygon(World* world, float x, float y, float angle, const float* points, int count, float density,
                 float friction, float restitution) {
  b2BodyDef at;
  at.type = b2_dynamicBody, at.position.Set(x, y), at.angle = angle;
  b2Vec2 vertices[b2_maxPolygonVertices];
  for (int i = 0; i < count; ++i) vertices[i].Set(points[2 * i], points[2 * i + 1]);
  b2PolygonShape shape;
  shape.Set(vertices, count);
  b2FixtureDef fixture;
  fixture.shape = &shape, fixture.density = density, fixture.friction = friction, fixture.restitution = restitution;
  b2Body* body = world->world.CreateBody(&at);
  body->CreateFixture(&fixture);
  world->bodies.push_back(body);
}

void add_joint(World* world, int first, int second, const float* anchors, float lower, float upper, float speed,
               float torque) {
  b2RevoluteJointDef joint;
  joint.bodyA = world->bodies[first], joint.bodyB = world->bodies[second];
  joint.localAnchorA.Set(anchors[0], anchors[1]), joint.localAnchorB.Set(anchors[2], anchors[3]);
  joint.enableMotor = joint.enableLimit = true;
  joint.lowerAngle = lower, joint.upperAngle = upper, joint.motorSpeed = speed, joint.maxMotorTorque = torque;
  world->world.CreateJoint(&joint);
}

void push(World* world, int body, float x, float y) { world->bodies[body]->ApplyForceToCenter({x, y}, true); }

void step(World* world, float* out) {
  world->world.Step(float(1.0 / 50), 6 * 30, 2 * 30);
  for (const b2Body* body : world->bodies) {
    const b2Vec2 &place = body->GetPosition(), &velocity = body->GetLinearVelocity();
    for (float value : {place.x, place.y, body->GetAngle(), velocity.x, velocity.y, body->GetAngularVelocity()})
      *out++ = value;
  }
}
}
