/// The environments that are built in. A new one is its header, which is included here, and its name in the list.
#pragma once

#include "penstock/envs/acrobot.hpp"
#include "penstock/envs/cartpole.hpp"
#include "penstock/envs/connect_four.hpp"
#include "penstock/envs/mountain_car.hpp"
#include "penstock/envs/mountain_car_continuous.hpp"
#include "penstock/envs/pendulum.hpp"
#include "penstock/envs/position_only_cartpole.hpp"
#include "penstock/envs/simple_spread.hpp"
#include "penstock/minigrid/environment.hpp"
#include "penstock/toy_text/blackjack.hpp"
#include "penstock/toy_text/cliff_walking.hpp"
#include "penstock/toy_text/frozen_lake.hpp"
#include "penstock/toy_text/taxi.hpp"

#define PENSTOCK_BUILT_IN                                                                           \
  penstock::Acrobot, penstock::Blackjack, penstock::CartPole, penstock::CliffWalking,               \
      penstock::ConnectFour, penstock::FrozenLake, penstock::FrozenLake8x8, penstock::MaskedTaxi,   \
      penstock::MiniGrid, penstock::MiniGridObstacles, penstock::MountainCar,                       \
      penstock::MountainCarContinuous, penstock::Pendulum, penstock::PositionOnlyCartPole,          \
      penstock::SimpleSpread, penstock::SimpleSpreadContinuous, penstock::Taxi
