// Checks of the engine that need an environment of their own, or no Python around. Run by test_engine.py; prints what
// failed and exits with 1.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "fuse.hpp"
#include "penstock/engine/async_pool.hpp"
#include "penstock/random/numpy_math.hpp"
#include "penstock/engine/catalog_entry.hpp"
#include "penstock/engine/pool.hpp"

namespace {

std::atomic<long> allocations{0};
int failures = 0;

void check(bool holds, const char* what) {
  if (!holds) {
    std::printf("FAILED: %s\n", what);
    ++failures;
  }
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace penstock;

struct Run {
  static constexpr std::size_t envs = 10;
  static constexpr std::int64_t steps = 16;
  std::vector<float> observation = std::vector<float>(envs * steps * 2);
  std::vector<float> reward = std::vector<float>(envs * steps);
  std::vector<std::uint8_t> terminated = std::vector<std::uint8_t>(envs * steps), truncated = terminated;
  std::vector<std::int32_t> episode_id = std::vector<std::int32_t>(envs * steps);
  std::vector<std::int64_t> actions = std::vector<std::int64_t>(envs, 1);

  std::unique_ptr<AnyPool> make(int threads, double toil_us = 0, Autoreset autoreset = Autoreset::same_step) const {
    const PoolSettings settings{.size = envs,
                                .num_threads = threads,
                                .max_episode_steps = 7,
                                .autoreset = autoreset,
                                .config = {std::vector<double>(envs, 5.0), std::vector<double>(envs, toil_us)},
                                .resources = {}};
    auto pool = catalog_entry<Fuse>().make(settings);
    for (std::uint64_t env = 0; env < envs; ++env) pool->reset(env, &env);
    return pool;
  }
  void begin(AnyPool& pool) {
    pool.begin_round(
        {steps, observation.data(), reward.data(), terminated.data(), truncated.data(), episode_id.data()});
  }
  RoundResult play(AnyPool& pool) {
    begin(pool);
    for (std::int64_t t = 0; t < steps; ++t) pool.step_round(t, actions.data());
    return pool.end_round();
  }
};

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void failing_environment_is_named_and_alone(int threads) {
  Run run;
  const auto pool = run.make(threads, 30);
  run.play(*pool);
  run.begin(*pool);
  run.actions[3] = run.actions[8] = 2;
  const std::string error = error_of([&] { pool->step_round(0, run.actions.data()); });
  check(error == "environment 3 of Fuse failed: the fuse blew", "the first failing environment is named");
  check(run.reward[9] == run.observation[2 * 9 + 1] && run.reward[9] > 0, "the environments after it were stepped");
  run.actions.assign(Run::envs, 1);
  check(error_of([&] { run.begin(*pool); }).find("not every environment is ready") != std::string::npos,
        "a failed environment needs a reset");
  for (const std::size_t env : {3u, 8u}) pool->reset(env, nullptr);
  check(run.play(*pool).episodes.size() >= 3 * Run::envs, "and is well after it");
}

void steady_rounds_do_not_allocate(int threads) {
  Run run;
  for (const double toil_us : {0, 30}) {
    const auto pool = run.make(threads, toil_us);
    run.play(*pool);
    run.play(*pool);
    run.begin(*pool);
    const long before = allocations;
    for (std::int64_t t = 0; t < Run::steps; ++t) pool->step_round(t, run.actions.data());
    check(allocations == before, "no allocation in a step once the lists have grown");
  }
}

void threads_do_not_change_results() {
  Run one, four;
  const auto first = one.make(1), second = four.make(4, 30);
  for (int round = 0; round < 100; ++round) {
    const RoundResult a = one.play(*first), b = four.play(*second);
    check(a.bootstrap_rows == b.bootstrap_rows && a.bootstrap_observation == b.bootstrap_observation &&
              a.episodes.size() == b.episodes.size() && one.observation == four.observation &&
              one.reward == four.reward && one.episode_id == four.episode_id,
          "one and four threads agree");
  }
}

/// The arrays of a step, or of a batch.
struct Rows {
  explicit Rows(std::size_t count)
      : observation(2 * count), reward(count), report(0), episode_return(count), flags(new bool[3 * count]()),
        episode_length(count), final_observation(2 * count), env_id(count), out{.observation = observation.data(),
                                                                                 .reward = reward.data(),
                                                                                 .terminated = flags.get(),
                                                                                 .truncated = flags.get() + count,
                                                                                 .fresh = flags.get() + 2 * count,
                                                                                 .episode_return = episode_return.data(),
                                                                                 .episode_length = episode_length.data(),
                                                                                 .final_observation =
                                                                                     final_observation.data(),
                                                                                 .report = report.data(),
                                                                                 .final_report = report.data()} {}
  std::vector<float> observation;
  std::vector<double> reward, report, episode_return;
  std::unique_ptr<bool[]> flags;
  std::vector<std::int64_t> episode_length;
  std::vector<float> final_observation;
  std::vector<std::int32_t> env_id;
  StepBuffers out;
};

void steps_do_not_allocate_and_share(int threads) {
  Run run;
  const auto pool = run.make(threads, 100), alone = run.make(1);
  Rows rows(Run::envs), expected(Run::envs);
  long before = 0;
  for (int step = 0; step < 60; ++step) {
    if (step == 20) before = allocations;
    pool->step(run.actions.data(), rows.out);
    alone->step(run.actions.data(), expected.out);
    check(rows.observation == expected.observation && rows.reward == expected.reward, "a step is the same for any team");
  }
  check(allocations == before, "no allocation in a step");
}

/// A pool that is stepped asynchronously, and what comes of each environment in its order.
struct Async {
  Run run;
  std::unique_ptr<AnyPool> pool;
  std::size_t batch;
  std::vector<std::unique_ptr<Rows>> placed;  // before the driver, whose threads write to them
  AsyncPool driver;
  std::vector<std::vector<float>> seen{Run::envs};
  std::vector<std::int32_t> order;

  Async(int threads, std::size_t batch_size, bool deterministic, double toil_us, Autoreset autoreset)
      : pool(run.make(1, toil_us, autoreset)), batch(batch_size), driver(*pool, {.batch_size = batch_size,
                                                                                 .deterministic = deterministic,
                                                                                 .num_threads = threads,
                                                                                 .autoreset = autoreset}) {
    for (auto& of_environment : seen) of_environment.reserve(4000);
    order.reserve(10000);
    for (std::size_t index = 0; index < driver.batches(); ++index) {
      placed.push_back(std::make_unique<Rows>(batch));
      driver.place(index, placed[index]->out, placed[index]->env_id.data());
    }
  }
  void reset() {
    std::vector<std::int32_t> all(Run::envs);
    std::vector<std::uint64_t> seed(Run::envs);
    std::vector<const std::uint64_t*> seeds(Run::envs);
    for (std::size_t env = 0; env < Run::envs; ++env)
      all[env] = static_cast<std::int32_t>(env), seed[env] = env, seeds[env] = &seed[env];
    driver.reset(all, seeds);
  }
  /// Notes a batch down and sends it on, with the environment of its second row told to fail, or not.
  void turn(bool fails = false) {
    const Rows& rows = *placed[driver.receive()];
    std::array<std::int64_t, Run::envs> actions{};
    for (std::size_t row = 0; row < batch; ++row) {
      const std::int32_t env = rows.env_id[row];
      auto& of_environment = seen[static_cast<std::size_t>(env)];
      for (const float value : {rows.observation[2 * row], rows.observation[2 * row + 1], float(rows.reward[row])})
        of_environment.push_back(value);
      order.push_back(env);
      actions[row] = fails && row == 1 ? 2 : 1;
    }
    driver.send(actions.data(), {rows.env_id.data(), batch});
  }
};

void asynchronous_steps_are_those_of_each_environment(int threads, bool deterministic, Autoreset autoreset) {
  Async parts(threads, 5, deterministic, threads > 1 ? 20 : 0, autoreset), whole(1, 10, true, 0, autoreset);
  parts.reset();
  whole.reset();
  long before = 0;
  for (int turn = 0; turn < 120; ++turn) {
    if (turn == 40) before = allocations;
    parts.turn();
  }
  check(allocations == before, "no allocation in asynchronous steps");
  std::size_t longest = 0;
  for (const auto& of_environment : parts.seen) longest = std::max(longest, of_environment.size());
  while (whole.seen[0].size() < longest) whole.turn();
  for (std::size_t env = 0; env < Run::envs; ++env)
    check(std::equal(parts.seen[env].begin(), parts.seen[env].end(), whole.seen[env].begin()),
          "an environment goes through the same whoever steps it and when");
  for (std::size_t row = 0; deterministic && row < parts.order.size(); ++row)
    check(parts.order[row] == static_cast<std::int32_t>(row % Run::envs), "batches come in a fixed rotation");
  parts.driver.drain();
  check(parts.driver.under_way() == 0, "all can be given up");
  parts.reset();
  for (int turn = 0; turn < 6; ++turn) parts.turn();  // and let the rest be destroyed under way
}

void asynchronous_failure_comes_out_of_receive(int threads, bool deterministic) {
  Async run(threads, 5, deterministic, 0, Autoreset::next_step);
  run.reset();
  run.turn();
  run.turn(true);
  std::string error;
  // Others may be done before it, how often is the system's to say.
  for (int turn = 0; turn < 1000 && error.empty(); ++turn) error = error_of([&] { run.turn(); });
  check(error.find("of Fuse failed: the fuse blew") != std::string::npos, "a failure comes out of receive");
  if (error.empty()) return;
  const std::int32_t failed = error[12] - '0';
  const std::int64_t action = 1;
  check(error_of([&] { run.driver.send(&action, {&failed, 1}); }).find("is not ready") != std::string::npos,
        "who failed needs a reset");
  const std::uint64_t seed = 3;
  const std::uint64_t* seeds[] = {&seed};
  run.driver.reset({&failed, 1}, seeds);
  check(error_of([&] { run.driver.send(&action, {&failed, 1}); }).find("is under way") != std::string::npos,
        "nobody is sent twice");
  for (int turn = 0; turn < 10; ++turn) run.turn();
}

void forked_child_is_told() {
  Run run;
  const auto pool = run.make(3);
  const auto alone = run.make(1);
  const pid_t child = fork();
  if (child == 0) {
    run.begin(*pool);
    const bool told = error_of([&] { pool->step_round(0, run.actions.data()); }).find("fork") != std::string::npos;
    const bool works = run.play(*alone).bootstrap_rows.size() >= Run::envs;
    _exit(told && works ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child's pool says so, one without threads works");
  check(run.play(*pool).bootstrap_rows.size() >= Run::envs, "the parent's pool works on");
}

/// Squares are pow(x, 2), of values that environments have and of all others.
void squares_are_the_librarys() {
  Rng rng(1);
  long different = 0;
  for (int i = 0; i < 300'000; ++i) {
    const double usual = rng.uniform(-10.0, 10.0), any = std::bit_cast<double>(rng.next());
    for (const double x : {usual, any, double(float(usual)), std::ldexp(usual, 31), std::floor(usual)}) {
      const double ours = power(x, 2.0), theirs = library_power(x, 2.0);
      different += std::bit_cast<std::uint64_t>(ours) != std::bit_cast<std::uint64_t>(theirs) && !std::isnan(theirs);
    }
  }
  check(different == 0, "a square is what the C library's pow gives");
}

}  // namespace

int main() {
  squares_are_the_librarys();
  for (const int threads : {1, 2, 4}) {
    failing_environment_is_named_and_alone(threads);
    steady_rounds_do_not_allocate(threads);
    steps_do_not_allocate_and_share(threads);
    for (const bool deterministic : {false, true}) {
      for (const Autoreset autoreset : {Autoreset::next_step, Autoreset::same_step})
        asynchronous_steps_are_those_of_each_environment(threads, deterministic, autoreset);
      asynchronous_failure_comes_out_of_receive(threads, deterministic);
    }
  }
  threads_do_not_change_results();
  forked_child_is_told();
  return failures == 0 ? 0 : 1;
}
