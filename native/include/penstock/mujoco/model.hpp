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
  int sites = 0;                        ///< those that the task reads, the first ones
};

struct DeleteModel {
  void operator()(mjModel* model) const noexcept { mj_deleteModel(model); }
};
using OwnedModel = std::unique_ptr<mjModel, DeleteModel>;

/// Loads a model; MuJoCo's remarks on it are dropped. Throws std::invalid_argument.
inline mjModel* load_model(const std::string& path) {
  std::array<char, 1024> said{};
  mjModel* loaded = nullptr;
  guarded([&] { loaded = mj_loadXML(path.c_str(), nullptr, said.data(), said.size()); }, Warnings::dropped);
  if (loaded == nullptr) throw std::invalid_argument("cannot load " + path + ": " + said.data());
  return loaded;
}

template <const Robot& robot>
class Model {
 public:
  /// From the folder that holds Gymnasium's XML files, or from a file whose name ends in .xml. Throws
  /// std::invalid_argument where that is not a model of this robot.
  explicit Model(const std::string& resources) : fused_dot(dot_is_fused) {
    const std::string path = resources.ends_with(".xml") ? resources : resources + "/" + robot.file;
    model_.reset(load_model(path));
    const mjModel* loaded = get();
    const auto limits = [&](int actuator, int side) { return static_cast<float>(loaded->actuator_ctrlrange[2 * actuator + side]); };
    bool fits = loaded->nq == robot.nq && loaded->nv == robot.nv && loaded->nu == robot.nu &&
                loaded->nbody == robot.nbody && loaded->na == 0 && loaded->nsite >= robot.sites;
    for (int actuator = 0; fits && actuator < robot.nu; ++actuator)
      fits = limits(actuator, 0) == -robot.control_limit && limits(actuator, 1) == robot.control_limit;
    for (std::size_t i = 0; fits && i < robot.bodies.size() && robot.bodies[i] != nullptr; ++i)
      fits = (bodies[i] = mj_name2id(loaded, mjOBJ_BODY, robot.bodies[i])) >= 0;
    if (!fits) {
      std::string expected = numbers(robot.nq, robot.nv, robot.nu, robot.nbody) + ", controls from " +
                             std::to_string(-robot.control_limit) + " to " + std::to_string(robot.control_limit);
      for (const char* name : robot.bodies)
        if (name != nullptr) expected.append(", a body ").append(name);
      if (robot.sites > 0) expected.append(", at least ").append(std::to_string(robot.sites)).append(" site");
      throw std::invalid_argument(path + ": found a model with " +
                                  numbers(loaded->nq, loaded->nv, loaded->nu, loaded->nbody) +
                                  ", expected the structure of Gymnasium's " + robot.file + " (" + expected +
                                  ", no activations), for which this was compiled");
    }
    integration_size = static_cast<std::size_t>(mj_stateSize(loaded, mjSTATE_INTEGRATION));
  }

  const mjModel* get() const noexcept { return model_.get(); }
  const mjModel* operator->() const noexcept { return model_.get(); }

  const bool fused_dot;
  std::size_t integration_size = 0;
  std::array<int, 3> bodies{};

 private:
  static std::string numbers(mjtSize positions, mjtSize velocities, mjtSize actuators, mjtSize all_bodies) {
    return std::to_string(positions) + " positions, " + std::to_string(velocities) + " velocities, " +
           std::to_string(actuators) + " actuators, " + std::to_string(all_bodies) + " bodies";
  }

  OwnedModel model_;
};

}  // namespace penstock::mujoco
