// This loop is the baseline of a MuJoCo pool: mj_step and mj_rnePostConstraint alone, random controls, many simulations
// on a few threads. Prints environment steps per second.
//
//     mujoco MODEL.xml SIMULATIONS THREADS FRAME_SKIP SECONDS CONTROL_BOUND HEALTHY_Z_MIN HEALTHY_Z_MAX NOISE
#include <mujoco/mujoco.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 10) return std::fprintf(stderr, "nine arguments expected, got %d\n", argc - 1), 2;
  char error[512] = "";
  mjModel* model = mj_loadXML(argv[1], nullptr, error, sizeof error);
  if (model == nullptr) return std::fprintf(stderr, "%s\n", error), 1;
  const int simulations = std::atoi(argv[2]), threads = std::atoi(argv[3]), frame_skip = std::atoi(argv[4]);
  const double seconds = std::atof(argv[5]), bound = std::atof(argv[6]);
  const double z_min = std::atof(argv[7]), z_max = std::atof(argv[8]), noise = std::atof(argv[9]);

  std::vector<mjData*> data(static_cast<std::size_t>(simulations));
  for (mjData*& one : data) one = mj_makeData(model);
  std::atomic<long> steps{0};
  const auto started = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  std::vector<std::thread> team;
  for (int member = 0; member < threads; ++member)
    team.emplace_back([&, member] {
      std::mt19937 generator(static_cast<unsigned>(member));
      std::uniform_real_distribution<double> control(-bound, bound), shift(-noise, noise);
      const auto reset = [&](mjData* one) {
        mj_resetData(model, one);
        for (int i = 0; i < model->nq; ++i) one->qpos[i] += shift(generator);
        for (int i = 0; i < model->nv; ++i) one->qvel[i] = shift(generator);
        mj_forward(model, one);
      };
      for (int i = member; i < simulations; i += threads) reset(data[static_cast<std::size_t>(i)]);
      std::vector<int> lengths(data.size());
      while (elapsed() < seconds)
        for (int i = member; i < simulations; i += threads) {
          mjData* one = data[static_cast<std::size_t>(i)];
          for (int j = 0; j < model->nu; ++j) one->ctrl[j] = control(generator);
          for (int k = 0; k < frame_skip; ++k) mj_step(model, one);
          mj_rnePostConstraint(model, one);
          ++steps;
          int& length = lengths[static_cast<std::size_t>(i)];
          if (++length >= 1000 || (z_max > z_min && (one->qpos[2] < z_min || one->qpos[2] > z_max)))
            reset(one), length = 0;
        }
    });
  for (std::thread& member : team) member.join();
  std::printf("{\"env_steps_per_second\": %.6g}\n", double(steps) / elapsed());
  for (mjData* one : data) mj_deleteData(one);
  mj_deleteModel(model);
}
