/// One environment's simulation: its mjData, the arrays of the model that are its own, and steps after which positions,
/// velocities and sensors are those of the new state, as the suite makes them.
#pragma once

#include <mujoco/mujoco.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "penstock/random/numpy_random.hpp"

namespace penstock::dmc {

using Vector = std::array<double, 3>;

struct DeleteModel {
  void operator()(mjModel* model) const noexcept { mj_deleteModel(model); }
};
struct DeleteData {
  void operator()(mjData* data) const noexcept { mj_deleteData(data); }
};
using ModelPointer = std::unique_ptr<mjModel, DeleteModel>;

class Physics {
 public:
  /// The model must outlive it.
  Physics(const mjModel& shared, std::int64_t substeps);
  Physics(const Physics&) = delete;
  Physics& operator=(const Physics&) = delete;

  /// The model as this environment has it: all arrays are the pool's, but for those of `own`.
  mjModel model;
  [[nodiscard]] mjData& data() { return *data_; }
  [[nodiscard]] const mjData& data() const { return *data_; }

  /// Gives the environment its own copy of one of the model's arrays, which is then saved with the state.
  void own(mjtNum* mjModel::*array, std::size_t size);
  /// Gives it height fields of its own, which follow from `drawn` and are not saved.
  void own_heights();
  /// Numbers that a task draws in an episode, and of which `apply_drawn` makes a part of the model: these are saved.
  std::vector<double> drawn;
  std::function<void(Physics&)> apply_drawn;

  /// To the initial state; then, as at every reset, the forward dynamics without actuators.
  void reset();
  void forward_without_actuators();
  /// Steps as long as a control lasts.
  void step() { step(substeps_); }
  void step(std::int64_t count);

  [[nodiscard]] std::size_t state_size() const;
  void save(std::span<double> out) const;
  void load(std::span<const double> in);

  /// Draws every joint that has a range within it, and every other angle and orientation from all; positions of free bodies
  /// and of unlimited slides stay.
  void randomize_joints(Rng& rng);

  [[nodiscard]] std::span<const double> positions(std::size_t first = 0) const { return part(data_->qpos, model.nq, first); }
  [[nodiscard]] std::span<const double> velocities() const { return part(data_->qvel, model.nv, 0); }
  [[nodiscard]] std::span<const double> controls() const { return part(data_->ctrl, model.nu, 0); }
  [[nodiscard]] std::span<const double> sensor(int id) const {
    return {data_->sensordata + model.sensor_adr[id], static_cast<std::size_t>(model.sensor_dim[id])};
  }
  [[nodiscard]] double sensor_value(int id) const { return data_->sensordata[model.sensor_adr[id]]; }
  [[nodiscard]] const double* body_position(int body) const { return data_->xpos + 3 * body; }
  /// The nine numbers of a body's rotation, row by row: column j is the body's axis j in the world.
  [[nodiscard]] const double* body_rotation(int body) const { return data_->xmat + 9 * body; }

 private:
  static std::span<const double> part(const double* values, int size, std::size_t first) {
    if (first > static_cast<std::size_t>(size))
      throw std::runtime_error(std::to_string(size) + " values, expected at least " + std::to_string(first));
    return std::span<const double>(values, static_cast<std::size_t>(size)).subspan(first);
  }

  std::unique_ptr<mjData, DeleteData> data_;
  std::int64_t substeps_;
  std::size_t integration_size_;
  std::vector<std::vector<double>> own_;
  std::vector<float> heights_;
};

/// Places of a body's rotation matrix that tasks read.
enum Entry : std::size_t { xx, xy, xz, yx, yy, yz, zx, zy, zz };

/// Numbers of named objects; throw std::runtime_error where there is none of that name.
int body_of(const mjModel& model, const char* name);
int joint_of(const mjModel& model, const char* name);
int geom_of(const mjModel& model, const char* name);
int site_of(const mjModel& model, const char* name);
int sensor_of(const mjModel& model, const char* name);

/// Returns the vector from one point to another.
Vector between(const double* to, const double* from);
/// `np.dot(vector, vector)`, of a few values.
double squared_length(std::span<const double> vector);
/// `np.linalg.norm`.
double length(std::span<const double> vector);
/// A vector of the world in the frame of a rotation: `vector.dot(rotation)`.
Vector in_frame(const Vector& vector, const double* rotation);
/// `np.mean`.
double mean(std::span<const double> values);

}  // namespace penstock::dmc
