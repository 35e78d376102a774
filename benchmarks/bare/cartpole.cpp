// This bare loop is the pool's reference: CartPole-v1's physics and nothing else, in double precision with the C
// library's sine and cosine. States are in one array; each thread steps its own part and never waits for another.
// There is no Python, no time limit, no action check, no seeds and no infos. The remaining cost is the physics.
//
//     c++ -std=c++20 -O3 -ffp-contract=off -pthread benchmarks/bare/cartpole.cpp -o cartpole && ./cartpole 1024 2
//
// Prints the best rate of several intervals in environment steps per second, without resets.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr double gravity = 9.8, masscart = 1.0, masspole = 0.1, length = 0.5, force_mag = 10.0, tau = 0.02;
constexpr double total_mass = masspole + masscart, polemass_length = masspole * length;
constexpr double x_limit = 2.4, angle_limit = 12 * 2 * 3.14159265358979323846 / 360;

struct State {
  double x, x_dot, angle, angle_dot;
};

struct Batch {
  explicit Batch(std::size_t size) : states(size), observations(4 * size), rewards(size), terminated(size) {}
  std::vector<State> states;
  std::vector<float> observations;
  std::vector<double> rewards;
  std::vector<std::uint8_t> terminated;
};

void reset(State& state, std::minstd_rand& random) {
  std::uniform_real_distribution<double> near_zero(-0.05, 0.05);
  state = {near_zero(random), near_zero(random), near_zero(random), near_zero(random)};
}

/// Steps every environment, or resets it if it has terminated. Returns the number of stepped environments.
std::size_t step(Batch& batch, const std::int64_t* actions, std::minstd_rand& random) {
  std::size_t stepped = 0;
  for (std::size_t env = 0; env < batch.states.size(); ++env) {
    State& s = batch.states[env];
    if (batch.terminated[env]) {
      reset(s, random);
      batch.rewards[env] = 0.0;
      batch.terminated[env] = 0;
    } else {
      // Unpredictable branches are avoided.
      const double force = static_cast<double>(2 * actions[env] - 1) * force_mag;
      const double cosine = std::cos(s.angle), sine = std::sin(s.angle);
      const double push = (force + polemass_length * (s.angle_dot * s.angle_dot) * sine) / total_mass;
      const double angle_acc =
          (gravity * sine - cosine * push) / (length * (4.0 / 3.0 - masspole * (cosine * cosine) / total_mass));
      const double x_acc = push - polemass_length * angle_acc * cosine / total_mass;
      s.x += tau * s.x_dot;
      s.x_dot += tau * x_acc;
      s.angle += tau * s.angle_dot;
      s.angle_dot += tau * angle_acc;
      batch.rewards[env] = 1.0;
      batch.terminated[env] =
          (s.x < -x_limit) | (s.x > x_limit) | (s.angle < -angle_limit) | (s.angle > angle_limit);
      ++stepped;
    }
    float* out = &batch.observations[4 * env];
    out[0] = float(s.x), out[1] = float(s.x_dot), out[2] = float(s.angle), out[3] = float(s.angle_dot);
  }
  return stepped;
}

}  // namespace

int main(int count, char** arguments) {
  const int size = count > 1 ? std::atoi(arguments[1]) : 1024, threads = count > 2 ? std::atoi(arguments[2]) : 1;
  if (size < 1 || threads < 1 || threads > size) {
    std::fprintf(stderr, "usage: %s [environments] [threads], at least one environment a thread\n", arguments[0]);
    return 2;
  }
  constexpr int stretches = 300;
  constexpr std::size_t prepared = 64;
  const auto seconds_a_stretch = std::chrono::duration<double>(0.004);
  std::vector<std::vector<double>> rates(static_cast<std::size_t>(threads));
  std::vector<std::thread> team;
  std::atomic<int> ready{0};
  for (int member = 0; member < threads; ++member) {
    team.emplace_back([&, member] {
      Batch batch(static_cast<std::size_t>(size * (member + 1) / threads - size * member / threads));
      std::minstd_rand random(static_cast<unsigned>(member + 1));
      for (State& state : batch.states) reset(state, random);
      std::vector<std::int64_t> actions(prepared * batch.states.size());
      for (std::int64_t& action : actions) action = static_cast<std::int64_t>(random() >> 20 & 1);
      std::size_t turn = 0;
      const auto one = [&] { return step(batch, &actions[turn++ % prepared * batch.states.size()], random); };
      ++ready;
      while (ready < threads) one();
      for (int stretch = 0; stretch < stretches; ++stretch) {
        const auto start = std::chrono::steady_clock::now();
        std::chrono::duration<double> elapsed{};
        std::size_t stepped = 0;
        while (elapsed < seconds_a_stretch) {
          for (int i = 0; i < 10; ++i) stepped += one();
          elapsed = std::chrono::steady_clock::now() - start;
        }
        rates[static_cast<std::size_t>(member)].push_back(static_cast<double>(stepped) / elapsed.count());
      }
    });
  }
  for (std::thread& thread : team) thread.join();
  double total = 0.0;
  for (const auto& of_member : rates) total += *std::max_element(of_member.begin(), of_member.end());
  std::printf("%.0f\n", total);
}
