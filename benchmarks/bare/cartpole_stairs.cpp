// A staircase of CartPole-v1 on one core: from the least arithmetic that moves the state to a whole step of the pool,
// one demand more on each stair. What a demand costs is the difference from the stair before it.
//
//     c++ -std=c++20 -O3 -ffp-contract=off -pthread -I native/include benchmarks/bare/cartpole_stairs.cpp -o stairs
//     chrt -r 1 ./stairs avx512
//
// The first argument is the instruction set, which is chosen at run time as the pool chooses it; a second one names a
// stair to measure alone, for a profiler. Prints a JSON object: of each stair the best and the median rate of short
// stretches in environment steps per second; resets are not counted as steps. Stairs without resets begin from states
// of running episodes, which are set again after every fourth step, outside of the measured time: angles are then those
// of episodes. The stair with all outputs must equal the pool bit for bit, or the program fails.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "penstock/engine/pool.hpp"
#include "penstock/engine/row_buffers.hpp"
#include "penstock/envs/cartpole.hpp"

namespace {

using penstock::CartPole;
using Clock = std::chrono::steady_clock;

constexpr std::size_t environments = 1024, group = penstock::group_size, groups = environments / group;
constexpr std::size_t starts = 16, steps_a_start = 4, prepared = starts * steps_a_start;
constexpr CartPole::Config config;
constexpr double total_mass = config.masspole + config.masscart, polemass_length = config.masspole * config.length;

/// The demands, each with all before it.
enum class Demand { float32, float64, order, library, ends, resets, outputs };

template <Demand up_to>
using RealOf = std::conditional_t<(up_to >= Demand::float64), double, float>;
template <Demand up_to>
using IntegerOf = std::conditional_t<(up_to >= Demand::float64), std::int64_t, std::int32_t>;

/// A group of environments side by side: no number is gathered from anywhere.
template <class Real>
struct alignas(64) Block {
  std::array<Real, group> x, x_dot, angle, angle_dot;
  std::array<std::int64_t, group> elapsed;
  std::uint64_t over = 0;  ///< a bit for each environment whose episode has ended: its next step is a reset
};

struct Outputs {
  alignas(64) std::array<float, 4 * environments> observation;
  alignas(64) std::array<double, environments> reward;
  alignas(64) std::array<bool, environments> terminated, truncated;
};

template <class Real>
struct Batch {
  std::array<Block<Real>, groups> blocks;
  std::vector<penstock::Rng> generators;
  std::size_t ended = 0;
  Outputs out;
};

/// Moves by a step in any order of operations, fused, with one division.
template <class Real>
[[gnu::always_inline]] inline void move_freely(Real push_right, Real cosine, Real sine, Real& x, Real& x_dot,
                                               Real& angle, Real& angle_dot) {
  constexpr Real inverse = Real(1 / total_mass), tau = Real(config.tau), pole = Real(polemass_length);
  const Real force = std::fma(push_right, Real(2 * config.force_mag), Real(-config.force_mag));
  const Real push = std::fma(pole * (angle_dot * angle_dot), sine, force) * inverse;
  const Real divisor = std::fma(cosine * cosine, Real(-config.length * config.masspole / total_mass),
                                Real(config.length * 4 / 3));
  const Real angle_acc = std::fma(Real(config.gravity), sine, -cosine * push) / divisor;
  const Real x_acc = std::fma(-pole * inverse * angle_acc, cosine, push);
  x = std::fma(tau, x_dot, x);
  x_dot = std::fma(tau, x_acc, x_dot);
  angle = std::fma(tau, angle_dot, angle);
  angle_dot = std::fma(tau, angle_acc, angle_dot);
}

/// Moves by a step in Gymnasium's order of operations, as the pool does.
[[gnu::always_inline]] inline void move_in_order(double push_right, double cosine, double sine, double& x,
                                                 double& x_dot, double& angle, double& angle_dot) {
  const double force = (2 * push_right - 1) * config.force_mag;
  const double push = (force + polemass_length * (angle_dot * angle_dot) * sine) / total_mass;
  const double angle_acc = (config.gravity * sine - cosine * push) /
                           (config.length * (4.0 / 3.0 - config.masspole * (cosine * cosine) / total_mass));
  const double x_acc = push - polemass_length * angle_acc * cosine / total_mass;
  x = x + config.tau * x_dot;
  x_dot = x_dot + config.tau * x_acc;
  angle = angle + config.tau * angle_dot;
  angle_dot = angle_dot + config.tau * angle_acc;
}

/// Sets the sine and the cosine of an angle of an episode to about the last place.
template <class Real>
[[gnu::always_inline]] inline void polynomials(Real angle, Real& sine, Real& cosine) {
  const Real r2 = angle * angle;
  Real odd = Real(-1.0 / 5040), even = Real(-1.0 / 720);
  if constexpr (std::is_same_v<Real, double>) {
    odd = std::fma(r2, std::fma(r2, std::fma(r2, 1.0 / 6227020800, -1.0 / 39916800), 1.0 / 362880), odd);
    even = std::fma(r2, std::fma(r2, std::fma(r2, 1.0 / 479001600, -1.0 / 3628800), 1.0 / 40320), even);
  }
  odd = std::fma(r2, std::fma(r2, odd, Real(1.0 / 120)), Real(-1.0 / 6));
  even = std::fma(r2, std::fma(r2, even, Real(1.0 / 24)), Real(-0.5));
  sine = std::fma(angle * r2, odd, angle);
  cosine = std::fma(r2, even, Real(1));
}

/// Converts an action. AVX2 has no instruction for 64 bits, so the bits of 2^52 + action are made instead.
[[gnu::always_inline]] inline float as_real(std::int32_t action) { return static_cast<float>(action); }
[[gnu::always_inline]] inline double as_real(std::int64_t action) {
  return std::bit_cast<double>(std::bit_cast<std::int64_t>(0x1p52) + action) - 0x1p52;
}

/// Calls body(i) for each bit that is set.
template <class Body>
[[gnu::always_inline]] inline void each_bit(std::uint64_t bits, Body&& body) {
  for (; bits != 0; bits &= bits - 1) body(static_cast<std::size_t>(std::countr_zero(bits)));
}

[[gnu::noinline]] void begin_episode(Block<double>& block, std::size_t i, penstock::Rng& generator) {
  CartPole env;
  env.reset(generator);
  block.x[i] = env.state.x, block.x_dot[i] = env.state.x_dot;
  block.angle[i] = env.state.angle, block.angle_dot[i] = env.state.angle_dot;
  block.elapsed[i] = 0;
}

/// Steps every environment; returns how many were reset instead.
template <Demand up_to>
[[gnu::always_inline]] inline std::size_t step(Batch<RealOf<up_to>>& batch, const IntegerOf<up_to>* actions) {
  using Real = RealOf<up_to>;
  std::size_t resets = 0;
  if constexpr (up_to >= Demand::outputs)
    penstock::check_actions<std::remove_cvref_t<decltype(CartPole::action)>>(actions, environments);
  for (std::size_t number = 0; number < groups; ++number) {
    Block<Real>& block = batch.blocks[number];
    const IntegerOf<up_to>* pushes = actions + number * group;
    alignas(64) std::array<Real, group> sine, cosine;
    if constexpr (up_to >= Demand::library) {
      penstock::small_sines_and_cosines(block.angle, sine, cosine);
    } else {
      for (std::size_t i = 0; i < group; ++i) polynomials(block.angle[i], sine[i], cosine[i]);
    }
    for (std::size_t i = 0; i < group; ++i) {
      const Real push = as_real(pushes[i]);
      if constexpr (up_to >= Demand::order)
        move_in_order(push, cosine[i], sine[i], block.x[i], block.x_dot[i], block.angle[i], block.angle_dot[i]);
      else
        move_freely(push, cosine[i], sine[i], block.x[i], block.x_dot[i], block.angle[i], block.angle_dot[i]);
    }
    if constexpr (up_to >= Demand::ends) {
      alignas(64) std::array<std::int64_t, group> fell, late;
      for (std::size_t i = 0; i < group; ++i) {
        const double x = block.x[i], angle = block.angle[i];
        fell[i] = (x < -CartPole::x_limit) | (x > CartPole::x_limit) | (angle < -CartPole::angle_limit) |
                  (angle > CartPole::angle_limit);
        block.elapsed[i] += 1;
        late[i] = block.elapsed[i] >= CartPole::info.max_episode_steps;
      }
      std::uint64_t over = 0;
      for (std::size_t i = 0; i < group; ++i) over |= std::uint64_t(fell[i] | late[i]) << i;
      const std::uint64_t before = std::exchange(block.over, up_to >= Demand::resets ? over & ~block.over : 0);
      batch.ended += static_cast<std::size_t>(std::popcount(over));
      if constexpr (up_to >= Demand::resets) {
        each_bit(before, [&](std::size_t i) { begin_episode(block, i, batch.generators[number * group + i]); });
        resets += static_cast<std::size_t>(std::popcount(before));
      }
      if constexpr (up_to >= Demand::outputs) {
        Outputs& out = batch.out;
        const std::size_t first = number * group;
        for (std::size_t i = 0; i < group; ++i) {
          float* row = &out.observation[4 * (first + i)];
          row[0] = float(block.x[i]), row[1] = float(block.x_dot[i]);
          row[2] = float(block.angle[i]), row[3] = float(block.angle_dot[i]);
        }
        for (std::size_t i = 0; i < group; ++i) out.reward[first + i] = 1.0;
        for (std::size_t i = 0; i < group; ++i) out.terminated[first + i] = fell[i] != 0;
        for (std::size_t i = 0; i < group; ++i) out.truncated[first + i] = late[i] != 0;
        each_bit(before, [&](std::size_t i) {
          out.reward[first + i] = 0.0;
          out.terminated[first + i] = out.truncated[first + i] = false;
        });
      }
    }
  }
  return resets;
}

template <Demand up_to>
[[gnu::target("avx2,fma")]] std::size_t step_avx2(Batch<RealOf<up_to>>& batch, const IntegerOf<up_to>* actions) {
  return step<up_to>(batch, actions);
}
template <Demand up_to>
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] std::size_t step_avx512(Batch<RealOf<up_to>>& batch,
                                                                         const IntegerOf<up_to>* actions) {
  return step<up_to>(batch, actions);
}

template <Demand up_to>
auto stepper(bool avx512) {
  return avx512 ? step_avx512<up_to> : step_avx2<up_to>;
}

/// Measures step(turn) for some turns at a time, after prepare(turn), which takes no part; prints best and median.
template <class Prepare, class Step>
void measure(const char* name, std::size_t turns_at_a_time, Prepare&& prepare, Step&& step) {
  constexpr int stretches = 31;
  constexpr std::chrono::duration<double> stretch(0.003);
  std::vector<double> rates;
  std::size_t turn = 0;
  for (int i = 0; i < stretches; ++i) {
    std::chrono::duration<double> elapsed{};
    std::size_t steps = 0;
    while (elapsed < stretch) {
      prepare(turn);
      const auto begin = Clock::now();
      for (std::size_t end = turn + turns_at_a_time; turn < end; ++turn) steps += environments - step(turn % prepared);
      elapsed += Clock::now() - begin;
    }
    rates.push_back(static_cast<double>(steps) / elapsed.count());
  }
  std::sort(rates.begin(), rates.end());
  std::printf(",\n \"%s\": {\"best\": %.0f, \"median\": %.0f}", name, rates.back(), rates[rates.size() / 2]);
}

std::vector<std::int64_t> drawn_actions() {
  penstock::Rng generator(7);
  std::vector<std::int64_t> actions(prepared * environments);
  for (std::int64_t& action : actions) action = generator.integers(0, 2);
  return actions;
}

/// Returns states of running episodes that do not end in the next steps of `actions`, as many as are set again.
std::vector<std::array<CartPole::State, environments>> running_states(const std::vector<std::int64_t>& actions) {
  std::vector<std::array<CartPole::State, environments>> all(starts);
  penstock::Rng generator(11);
  CartPole env;
  env.reset(generator);
  const auto runs_on = [&](std::int64_t action) {
    const bool ended = env.step(action).terminated;
    if (ended) env.reset(generator);
    return !ended;
  };
  for (std::size_t start = 0; start < starts; ++start) {
    for (std::size_t i = 0; i < environments; ++i) {
      bool lasts = false;
      while (!lasts) {
        for (int before = 0; before < 23; ++before) runs_on(generator.integers(0, 2));
        all[start][i] = env.state;
        lasts = true;
        for (std::size_t t = 0; t < steps_a_start; ++t)
          lasts &= runs_on(actions[(start * steps_a_start + t) * environments + i]);
      }
    }
  }
  return all;
}

template <Demand up_to>
std::unique_ptr<Batch<RealOf<up_to>>> made_batch() {
  auto batch = std::make_unique<Batch<RealOf<up_to>>>();
  if constexpr (up_to >= Demand::resets) {
    for (std::size_t i = 0; i < environments; ++i) {
      batch->generators.emplace_back(i);
      begin_episode(batch->blocks[i / group], i % group, batch->generators[i]);
    }
  }
  return batch;
}

std::unique_ptr<penstock::Pool<CartPole>> made_pool() {
  penstock::PoolSettings settings;
  settings.size = environments;
  settings.max_episode_steps = CartPole::info.max_episode_steps;
  const auto [gravity, masscart, masspole, length, force_mag, tau, sutton_barto_reward] = config;
  for (const double value : {gravity, masscart, masspole, length, force_mag, tau, double(sutton_barto_reward)})
    settings.config.emplace_back(environments, value);
  auto pool = std::make_unique<penstock::Pool<CartPole>>(settings);
  for (std::uint64_t seed = 0; seed < environments; ++seed) pool->reset(seed, &seed);
  return pool;
}

class Staircase {
 public:
  Staircase(bool avx512, std::string only) : avx512_(avx512), only_(std::move(only)) {}

  template <Demand up_to>
  void climb(const char* name) const {
    using Real = RealOf<up_to>;
    if (skips(name)) return;
    const auto batch = made_batch<up_to>();
    const std::vector<IntegerOf<up_to>> actions(actions_.begin(), actions_.end());
    const auto step = stepper<up_to>(avx512_);
    const auto made = [&](std::size_t turn) { return step(*batch, &actions[turn * environments]); };
    if constexpr (up_to >= Demand::resets) {
      measure(name, prepared, [](std::size_t) {}, made);
    } else {
      std::vector<std::array<Block<Real>, groups>> all(starts);
      for (std::size_t start = 0; start < starts; ++start) {
        for (std::size_t i = 0; i < environments; ++i) {
          const CartPole::State& state = states_[start][i];
          Block<Real>& block = all[start][i / group];
          const std::size_t at = i % group;
          block.x[at] = Real(state.x), block.x_dot[at] = Real(state.x_dot);
          block.angle[at] = Real(state.angle), block.angle_dot[at] = Real(state.angle_dot);
        }
      }
      measure(name, steps_a_start,
              [&](std::size_t turn) { batch->blocks = all[turn / steps_a_start % starts]; }, made);
    }
  }

  /// Measures the pool itself, which chooses the widest instructions.
  void pool(const char* name) const {
    if (skips(name) || avx512_ != penstock::runs_avx512()) return;
    const auto pool = made_pool();
    PoolOutputs out;
    std::size_t ended = 0;
    measure(name, prepared, [](std::size_t) {}, [&](std::size_t turn) {
      return std::exchange(ended, pool->step(&actions_[turn * environments], out.buffers()));
    });
  }

  /// Returns whether the last stair gives the pool's bits, up to the time limit and beyond.
  [[nodiscard]] bool equals_pool() const {
    const auto batch = made_batch<Demand::outputs>();
    const auto pool = made_pool();
    PoolOutputs out;
    const Outputs &mine = batch->out, &theirs = out.outputs;
    std::size_t differences = 0, late = 0;
    for (std::size_t t = 0; t < 1000; ++t) {
      // After a while half of them push to where the pole leans: episodes then reach the time limit.
      std::vector<std::int64_t> actions(environments);
      std::copy_n(&actions_[t % prepared * environments], environments, actions.begin());
      for (std::size_t i = 0; t > 300 && i < environments / 2; ++i)
        actions[i] = mine.observation[4 * i + 2] + mine.observation[4 * i + 3] > 0;
      stepper<Demand::outputs>(avx512_)(*batch, actions.data());
      pool->step(actions.data(), out.buffers());
      differences += std::memcmp(mine.observation.data(), theirs.observation.data(), sizeof mine.observation) != 0;
      differences += mine.reward != theirs.reward || mine.terminated != theirs.terminated;
      differences += mine.truncated != theirs.truncated;
      late += static_cast<std::size_t>(std::count(mine.truncated.begin(), mine.truncated.end(), true));
    }
    return differences == 0 && late > 0;
  }

 private:
  struct PoolOutputs {
    Outputs outputs{};
    penstock::StepExtras extras{penstock::RowBytes(penstock::describe<CartPole>()), environments,
                                penstock::Autoreset::next_step};
    penstock::StepBuffers buffers() {
      penstock::StepBuffers out{.observation = outputs.observation.data(), .reward = outputs.reward.data(),
                                .terminated = outputs.terminated.data(), .truncated = outputs.truncated.data()};
      extras.put(out);
      return out;
    }
  };

  [[nodiscard]] bool skips(const char* name) const { return !only_.empty() && only_ != name; }

  const bool avx512_;
  const std::string only_;
  const std::vector<std::int64_t> actions_ = drawn_actions();
  const std::vector<std::array<CartPole::State, environments>> states_ = running_states(actions_);
};

}  // namespace

int main(int count, char** arguments) {
  const std::string level = count > 1 ? arguments[1] : "";
  if (!(level == "avx2" && penstock::runs_avx2()) && !(level == "avx512" && penstock::runs_avx512())) {
    std::fprintf(stderr, "usage: %s avx2 or avx512, whichever this processor has [one of the stairs]\n", arguments[0]);
    return 2;
  }
  const std::string only = count > 2 ? arguments[2] : "";
  const Staircase stairs(level == "avx512", only);
  if (only.empty() && !stairs.equals_pool()) {
    std::fprintf(stderr, "the stair with all outputs differs from the pool\n");
    return 1;
  }
  std::printf("{\"level\": \"%s\"", level.c_str());
  stairs.climb<Demand::float32>("float32");
  stairs.climb<Demand::float64>("float64");
  stairs.climb<Demand::order>("order");
  stairs.climb<Demand::library>("library");
  stairs.climb<Demand::ends>("ends");
  stairs.climb<Demand::resets>("resets");
  stairs.climb<Demand::outputs>("outputs");
  stairs.pool("pool");
  std::printf("}\n");
}
