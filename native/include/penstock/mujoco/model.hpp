/// A robot of Gymnasium's: what must be known of it to compile a task, and its model, which a whole pool shares.
#pragma once

#include <mujoco/mujoco.h>

#include <array>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "penstock/mujoco/guard.hpp"
#include "penstock/mujoco/numpy_array.hpp"

namespace penstock::mujoco {

/// Arrays of mjData outside the integration state that a task reads before MuJoCo computes them anew, in an observation
/// or as the position before a step. They are saved with the state.
enum Derived : unsigned {
  body_positions = 1,
  mass_centers = 2,
  body_inertias = 4,
  body_velocities = 8,
  actuator_forces = 16,
  contact_forces = 32,
  constraint_forces = 64,
};

/// Sizes are compiled in, so that spaces are constants; a model that has others is refused.
struct Robot {
  const char* file;
  int nq, nv, nu, nbody;
  int frame_skip;  ///< Gymnasium's default
  float control_limit;
  unsigned derived = 0;
  std::array<const char*, 3> bodies{};  ///< names that the task looks up
};

template <const Robot& robot>
class Model {
 public:
  /// From the folder that holds Gymnasium's XML files. MuJoCo's remarks on those are not the user's concern.
  explicit Model(const std::string& folder) : fused_dot(dot_is_fused) {
    const std::string path = folder + "/" + robot.file;
    std::array<char, 1024> said{};
    mjModel* loaded = nullptr;
    guarded([&] { loaded = mj_loadXML(path.c_str(), nullptr, said.data(), said.size()); }, Warnings::dropped);
    if (loaded == nullptr) throw std::runtime_error("cannot load " + path + ": " + said.data());
    model_.reset(loaded);
    const auto limits = [&](int actuator, int side) { return static_cast<float>(loaded->actuator_ctrlrange[2 * actuator + side]); };
    bool fits = loaded->nq == robot.nq && loaded->nv == robot.nv && loaded->nu == robot.nu &&
                loaded->nbody == robot.nbody && loaded->na == 0;
    for (int actuator = 0; fits && actuator < robot.nu; ++actuator)
      fits = limits(actuator, 0) == -robot.control_limit && limits(actuator, 1) == robot.control_limit;
    for (std::size_t i = 0; fits && i < robot.bodies.size() && robot.bodies[i] != nullptr; ++i)
      fits = (bodies[i] = mj_name2id(loaded, mjOBJ_BODY, robot.bodies[i])) >= 0;
    if (!fits)
      throw std::runtime_error(path + " is not the model that this was compiled for: " + std::to_string(robot.nq) +
                               " positions, " + std::to_string(robot.nv) + " velocities, " + std::to_string(robot.nu) +
                               " actuators; expected the file of Gymnasium 1.4");
    integration_size = static_cast<std::size_t>(mj_stateSize(loaded, mjSTATE_INTEGRATION));
  }

  const mjModel* get() const noexcept { return model_.get(); }
  const mjModel* operator->() const noexcept { return model_.get(); }

  const bool fused_dot;
  std::size_t integration_size = 0;
  std::array<int, 3> bodies{};

 private:
  struct Delete {
    void operator()(mjModel* model) const noexcept { mj_deleteModel(model); }
  };
  std::unique_ptr<mjModel, Delete> model_;
};

}  // namespace penstock::mujoco
