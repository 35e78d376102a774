/// The base of all tasks: one mjData per environment, resets and steps as Gymnasium's MujocoEnv makes them, and
/// the state, saved bit for bit.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "penstock/env.hpp"
#include "penstock/mujoco/model.hpp"
#include "penstock/mujoco/numpy_array.hpp"
#include "penstock/mujoco/writer.hpp"
#include "penstock/random/numpy_math.hpp"

namespace penstock::mujoco {

inline constexpr double unlimited = std::numeric_limits<double>::infinity();

/// The observation of every task: unbounded float64.
template <std::size_t Size>
inline constexpr auto float64_row = BoxOf<double, Size>::filled(-unlimited, unlimited);

inline const char* skip_problem(std::int64_t frame_skip) {
  return frame_skip >= 1 && frame_skip <= 1'000'000 ? nullptr : "frame_skip must be 1 to 1000000";
}
inline const char* common_problem(double reset_noise_scale, std::int64_t frame_skip) {
  return reset_noise_scale >= 0.0 ? skip_problem(frame_skip) : "reset_noise_scale must be >= 0";
}

inline bool all_finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

/// `weight * np.sum(np.square(action))`: a float32 action makes the weight and the cost float32.
template <std::size_t Size>
float control_cost(double weight, std::span<const float, Size> action) {
  return static_cast<float>(weight) * sum_of_squares(action);
}

template <const Robot& robot>
class Simulation {
 public:
  using Shared = Model<robot>;
  static constexpr auto action = Box<std::size_t{robot.nu}>::filled(-robot.control_limit, robot.control_limit);
  using Action = std::span<const float, std::size_t{robot.nu}>;

  explicit Simulation(const Shared& shared) : model(&shared) {
    mjData* made = nullptr;
    guarded([&] { made = mj_makeData(shared.get()); });
    if (made == nullptr) throw std::runtime_error("MuJoCo has no memory for another simulation");
    data.reset(made);
  }

  [[nodiscard]] std::size_t state_size() const {
    std::size_t size = model->integration_size;
    for_each_derived([&](mjtNum*, std::size_t count) { size += count; });
    return size;
  }
  void save(std::span<double> out) const {
    mj_getState(model->get(), data.get(), out.data(), mjSTATE_INTEGRATION);
    double* next = out.data() + model->integration_size;
    for_each_derived([&](const mjtNum* values, std::size_t count) { next = std::copy_n(values, count, next); });
  }
  void load(std::span<const double> in) {
    guarded([&] {
      mj_resetData(model->get(), data.get());
      mj_setState(model->get(), data.get(), in.data(), mjSTATE_INTEGRATION);
    });
    const double* next = in.data() + model->integration_size;
    for_each_derived([&](mjtNum* values, std::size_t count) {
      std::copy_n(next, count, values);
      next += count;
    });
  }

 protected:
  template <std::size_t Size>
  using Values = std::span<const mjtNum, Size>;
  static constexpr std::size_t nq = robot.nq, nv = robot.nv, nu = robot.nu, nbody = robot.nbody;

  [[nodiscard]] Values<nq> qpos() const { return Values<nq>(data->qpos, nq); }
  [[nodiscard]] Values<nv> qvel() const { return Values<nv>(data->qvel, nv); }
  [[nodiscard]] Values<nu> ctrl() const { return Values<nu>(data->ctrl, nu); }
  [[nodiscard]] Values<6 * nbody> cfrc_ext() const { return Values<6 * nbody>(data->cfrc_ext, 6 * nbody); }

  /// Position of a body that the robot lists, and what leads from the second to the first.
  [[nodiscard]] Values<3> body(std::size_t listed) const {
    return Values<3>(data->xpos + 3 * model->bodies[listed], 3);
  }
  [[nodiscard]] std::array<double, 3> between(std::size_t first, std::size_t second) const {
    const auto to = body(first), from = body(second);
    return {to[0] - from[0], to[1] - from[1], to[2] - from[2]};
  }

  /// All positions, or those after the first ones.
  [[nodiscard]] std::span<const mjtNum> positions(std::size_t first, bool without_first) const {
    return std::span<const mjtNum>(qpos()).subspan(without_first ? first : 0);
  }

  [[nodiscard]] double distance_from_origin() const { return norm(std::array{qpos()[0], qpos()[1]}, model->fused_dot); }

  /// mj_resetData, then Gymnasium's set_state with what the two functions make of the initial values.
  template <class Position, class Velocity>
  void begin(Position&& position, Velocity&& velocity) {
    guarded([&] { mj_resetData(model->get(), data.get()); });
    std::array<double, nq> start;
    std::copy_n((*model)->qpos0, nq, start.begin());
    position(start);
    std::copy(start.begin(), start.end(), data->qpos);
    std::array<double, nv> speed{};
    velocity(speed);
    std::copy(speed.begin(), speed.end(), data->qvel);
    guarded([&] { mj_forward(model->get(), data.get()); });
  }

  static auto uniform_noise(Rng& rng, double low, double high) {
    return [&rng, low, high](auto& values) {
      for (double& value : values) value += rng.uniform(low, high);
    };
  }
  static auto uniform_noise(Rng& rng, double scale) { return uniform_noise(rng, -scale, scale); }
  static auto normal_noise(Rng& rng, double scale) {
    return [&rng, scale](auto& values) {
      for (double& value : values) value += scale * rng.standard_normal();
    };
  }

  /// Makes `frame_skip` steps under one control. The forces on bodies are made only for tasks that read them: no later step
  /// depends on them.
  void advance(Action control, std::int64_t frame_skip) {
    std::copy(control.begin(), control.end(), data->ctrl);
    guarded([&] {
      for (std::int64_t i = 0; i < frame_skip; ++i) mj_step(model->get(), data.get());
      if constexpr ((robot.derived & contact_forces) != 0) mj_rnePostConstraint(model->get(), data.get());
    });
  }

  /// Returns a coordinate's offset from its position in the model.
  [[nodiscard]] double rise(std::size_t coordinate) const { return qpos()[coordinate] - (*model)->qpos0[coordinate]; }
  [[nodiscard]] double speed(double before, double after, std::int64_t frame_skip) const {
    return (after - before) / ((*model)->opt.timestep * static_cast<double>(frame_skip));
  }

  const Shared* model;

 private:
  struct Delete {
    void operator()(mjData* owned) const noexcept { mj_deleteData(owned); }
  };

  template <class Visit>
  void for_each_derived(Visit&& visit) const {
    if constexpr ((robot.derived & body_positions) != 0) visit(data->xpos, 3 * nbody);
    if constexpr ((robot.derived & mass_centers) != 0) visit(data->xipos, 3 * nbody);
    if constexpr ((robot.derived & body_inertias) != 0) visit(data->cinert, 10 * nbody);
    if constexpr ((robot.derived & body_velocities) != 0) visit(data->cvel, 6 * nbody);
    if constexpr ((robot.derived & actuator_forces) != 0) visit(data->qfrc_actuator, nv);
    if constexpr ((robot.derived & contact_forces) != 0) visit(data->cfrc_ext, 6 * nbody);
    if constexpr ((robot.derived & constraint_forces) != 0) visit(data->qfrc_constraint, nv);
    static_cast<void>(visit);
  }

 protected:
  std::unique_ptr<mjData, Delete> data;
};

}  // namespace penstock::mujoco
