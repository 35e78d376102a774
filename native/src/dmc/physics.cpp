#include "penstock/dmc/physics.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "penstock/mujoco/guard.hpp"
#include "penstock/mujoco/numpy_array.hpp"

namespace penstock::dmc {

using mujoco::guarded;

Physics::Physics(const mjModel& shared, std::int64_t substeps) : model(shared), substeps_(substeps) {
  mjData* made = nullptr;
  guarded([&] { made = mj_makeData(&model); });
  if (made == nullptr) throw std::runtime_error("MuJoCo has no memory for another simulation");
  data_.reset(made);
  integration_size_ = static_cast<std::size_t>(mj_stateSize(&model, mjSTATE_INTEGRATION));
}

void Physics::own(mjtNum* mjModel::*array, std::size_t size) {
  own_.emplace_back(model.*array, model.*array + size);
  model.*array = own_.back().data();  // a vector that moves keeps its memory
}

void Physics::own_heights() {
  heights_.assign(model.hfield_data, model.hfield_data + model.nhfielddata);
  model.hfield_data = heights_.data();
}

void Physics::reset() {
  guarded([&] { mj_resetData(&model, data_.get()); });
  forward_without_actuators();
}

void Physics::forward_without_actuators() {
  const int flags = model.opt.disableflags;
  model.opt.disableflags |= mjDSBL_ACTUATION;
  struct Restore {
    mjModel& changed;
    const int flags;
    ~Restore() { changed.opt.disableflags = flags; }
  } restore{model, flags};
  guarded([&] { mj_forward(&model, data_.get()); });
}

void Physics::step(std::int64_t count) {
  guarded([&] {
    std::int64_t left = count;
    if (model.opt.integrator != mjINT_RK4) {  // what comes before the integration was computed after the last step
      mj_step2(&model, data_.get());
      --left;
    }
    for (; left > 0; --left) mj_step(&model, data_.get());
    mj_step1(&model, data_.get());
  });
}

std::size_t Physics::state_size() const {
  std::size_t size = integration_size_ + static_cast<std::size_t>(model.nsensordata);
  for (const auto& values : own_) size += values.size();
  return size + drawn.size();
}

void Physics::save(std::span<double> out) const {
  mj_getState(&model, data_.get(), out.data(), mjSTATE_INTEGRATION);
  double* next = std::copy_n(data_->sensordata, model.nsensordata, out.data() + integration_size_);
  for (const auto& values : own_) next = std::copy(values.begin(), values.end(), next);
  std::copy(drawn.begin(), drawn.end(), next);
}

void Physics::load(std::span<const double> in) {
  const double* sensors = in.data() + integration_size_;
  const double* next = sensors + model.nsensordata;
  for (auto& values : own_) {
    std::copy_n(next, values.size(), values.begin());
    next += values.size();
  }
  std::copy_n(next, drawn.size(), drawn.begin());
  if (apply_drawn) apply_drawn(*this);
  guarded([&] {
    mj_resetData(&model, data_.get());
    mj_setState(&model, data_.get(), in.data(), mjSTATE_INTEGRATION);
    mj_step1(&model, data_.get());
  });
  // Sensors of forces and accelerations are those of the step before, which mj_step1 does not make.
  std::copy_n(sensors, model.nsensordata, data_->sensordata);
}

namespace {

void normalize(std::span<double> vector) {
  const double norm = length(vector);
  for (double& value : vector) value /= norm;
}

void draw_orientation(Rng& rng, double limit, double* quaternion) {
  Vector axis;
  rng.standard_normal(axis);
  normalize(axis);
  mju_axisAngle2Quat(quaternion, axis.data(), rng.random() * limit);
}

}  // namespace

void Physics::randomize_joints(Rng& rng) {
  for (int joint = 0; joint < model.njnt; ++joint) {
    double* position = data_->qpos + model.jnt_qposadr[joint];
    const int type = model.jnt_type[joint];
    const double low = model.jnt_range[2 * joint], high = model.jnt_range[2 * joint + 1];
    if (model.jnt_limited[joint]) {
      if (type == mjJNT_HINGE || type == mjJNT_SLIDE) *position = rng.uniform(low, high);
      else if (type == mjJNT_BALL) draw_orientation(rng, high, position);
    } else if (type == mjJNT_HINGE) {
      *position = rng.uniform(-std::numbers::pi, std::numbers::pi);
    } else if (type == mjJNT_BALL) {
      const std::span quaternion(position, 4);
      rng.standard_normal(quaternion);
      normalize(quaternion);
    } else if (type == mjJNT_FREE) {  // not of all orientations: the suite draws from one sixteenth of them
      const std::span quaternion(position + 3, 4);
      for (double& value : quaternion) value = rng.random();
      normalize(quaternion);
    }
  }
}

namespace {

int found(const mjModel& model, int type, const char* kind, const char* name) {
  const int id = mj_name2id(&model, type, name);
  if (id < 0) throw std::runtime_error(std::string("the model has no ") + kind + " called " + name);
  return id;
}

}  // namespace

int body_of(const mjModel& model, const char* name) { return found(model, mjOBJ_BODY, "body", name); }
int joint_of(const mjModel& model, const char* name) { return found(model, mjOBJ_JOINT, "joint", name); }
int geom_of(const mjModel& model, const char* name) { return found(model, mjOBJ_GEOM, "geom", name); }
int site_of(const mjModel& model, const char* name) { return found(model, mjOBJ_SITE, "site", name); }
int sensor_of(const mjModel& model, const char* name) { return found(model, mjOBJ_SENSOR, "sensor", name); }

Vector between(const double* to, const double* from) { return {to[0] - from[0], to[1] - from[1], to[2] - from[2]}; }

double squared_length(std::span<const double> vector) {
  const bool fused = mujoco::dot_is_fused;
  double sum = 0.0;
  for (const double value : vector) sum = fused ? std::fma(value, value, sum) : sum + value * value;
  return sum;
}

double length(std::span<const double> vector) { return std::sqrt(squared_length(vector)); }

Vector in_frame(const Vector& vector, const double* rotation) {
  const bool fused = mujoco::dot_is_fused;
  Vector local;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const double x = rotation[axis], y = rotation[3 + axis], z = rotation[6 + axis];
    local[axis] = fused ? std::fma(vector[2], z, std::fma(vector[1], y, vector[0] * x))
                        : vector[0] * x + vector[1] * y + vector[2] * z;
  }
  return local;
}

double mean(std::span<const double> values) {
  std::size_t next = 0;
  double sum = 0.0;
  if (values.size() >= 8) {  // in NumPy's order, for at most 128 values
    std::array<double, 8> part;
    for (; next < 8; ++next) part[next] = values[next];
    for (; next + 8 <= values.size(); next += 8)
      for (std::size_t i = 0; i < 8; ++i) part[i] += values[next + i];
    sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  }
  for (; next < values.size(); ++next) sum += values[next];
  return sum / static_cast<double>(values.size());
}

}  // namespace penstock::dmc
