/// Gymnasium's MuJoCo tasks as a library of environments; native/pool/mujoco_library.py loads it.
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
