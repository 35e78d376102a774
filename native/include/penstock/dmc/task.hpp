/// A task of the suite: how an episode begins, what is observed, and the reward. One object for a whole pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/dmc/physics.hpp"
#include "penstock/dmc/tolerance.hpp"
#include "penstock/mujoco/writer.hpp"

namespace penstock::dmc {

using mujoco::Writer;

class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  /// Takes the arrays of the model that differ between environments, and sets what differs from the file.
  virtual void equip(Physics&) const {}
  /// Draws the initial state, after Physics::reset and before the forward dynamics.
  virtual void begin(Physics& physics, Rng& rng) const = 0;
  virtual void observe(const Physics& physics, Writer& out) const = 0;
  [[nodiscard]] virtual double reward(const Physics& physics) const = 0;
  /// Returns whether the state terminates the episode.
  [[nodiscard]] virtual bool ends(const Physics&) const { return false; }
};

using TaskPointer = std::unique_ptr<const Task>;

/// An id, and what makes it.
struct Listed {
  const char* id;
  const char* file;
  std::size_t controls, observed;
  double control_seconds;  ///< 0: a step of the model
  TaskPointer (*make)(const mjModel& model);
  std::string (*edit)(std::string xml) = nullptr;  ///< makes the model's text of the file's, where they differ
  bool endless = false;                            ///< no time limit, and controls without bounds
};

/// Every task. The order is for good: a task's place is its number in saved configurations.
const std::vector<Listed>& listed();

/// The reward for small controls that most tasks share: 1 without any, 0.8 where all are at their bounds.
double small_control(const Physics& physics);

// A function of each domain's file.
std::vector<Listed> acrobot();
std::vector<Listed> ball_in_cup();
std::vector<Listed> cartpole();
std::vector<Listed> cheetah();
std::vector<Listed> dog();
std::vector<Listed> finger();
std::vector<Listed> fish();
std::vector<Listed> hopper();
std::vector<Listed> humanoid();
std::vector<Listed> humanoid_cmu();
std::vector<Listed> lqr();
std::vector<Listed> manipulator();
std::vector<Listed> pendulum();
std::vector<Listed> point_mass();
std::vector<Listed> quadruped();
std::vector<Listed> quadruped_escape();
std::vector<Listed> reacher();
std::vector<Listed> stacker();
std::vector<Listed> swimmer();
std::vector<Listed> walker();

}  // namespace penstock::dmc
