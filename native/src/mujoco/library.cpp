/// Gymnasium's MuJoCo tasks as a library of environments; native/pool/mujoco_library.py loads it.
#include <cstring>
#include <string>

#include "penstock/library.hpp"
#include "penstock/mujoco/ant.hpp"
#include "penstock/mujoco/half_cheetah.hpp"
#include "penstock/mujoco/hopper.hpp"
#include "penstock/mujoco/humanoid.hpp"
#include "penstock/mujoco/inverted_double_pendulum.hpp"
#include "penstock/mujoco/inverted_pendulum.hpp"
#include "penstock/mujoco/pusher.hpp"
#include "penstock/mujoco/reacher.hpp"
#include "penstock/mujoco/swimmer.hpp"
#include "penstock/mujoco/walker2d.hpp"

using namespace penstock::mujoco;

PENSTOCK_LIBRARY(Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, InvertedDoublePendulum, InvertedPendulum, Pusher,
                 Reacher, Swimmer, Walker2d)

/// Writes the names of a model's bodies in MuJoCo's order, a line each, which is empty for a body without a name; or why
/// there is no such model, and returns false. Cut off at `size` bytes.
extern "C" __attribute__((visibility("default"))) bool penstock_mujoco_body_names(const char* path, char* out,
                                                                                  std::size_t size) {
  std::string text;
  bool found = true;
  try {
    const OwnedModel model(load_model(path));
    for (int body = 0; body < model->nbody; ++body)
      text.append(body > 0 ? "\n" : "").append(model->names + model->name_bodyadr[body]);
  } catch (const std::exception& error) {
    text = error.what(), found = false;
  }
  std::strncpy(out, text.c_str(), size);
  out[size - 1] = '\0';
  return found;
}
