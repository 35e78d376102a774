// Checks of the engine that need an environment of their own, or no Python around. Run by test_engine.py; prints what
// failed and exits with 1.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "penstock/pool.hpp"

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

/// Counts up; its episodes end after `length` steps; it throws when told to with action 2. A step takes `toil_us`
/// microseconds at least: where that is long enough, the whole team is called for it.
struct Fuse {
  static constexpr Info info{.id = "Fuse"};
  static constexpr Discrete<3> action{};
  static constexpr auto observation = Box<2>::symmetric({100.0, 1.0});
  struct Config {
    std::int64_t length = 5, toil_us = 0;
    PENSTOCK_FIELDS(Config, length, toil_us)
  } config;
  struct State {
    std::int64_t count;
    double luck;
    PENSTOCK_FIELDS(State, count, luck)
  } state;
  void reset(Rng& rng) { state = {0, rng.random()}; }
  Step step(std::int64_t chosen) {
    if (chosen == 2) throw std::runtime_error("the fuse blew");
    if (config.toil_us > 0)
      for (const std::int64_t end = nanoseconds_now() + 1000 * config.toil_us; nanoseconds_now() < end;) continue;
    return {.reward = state.luck, .terminated = ++state.count >= config.length};
  }
  void observe(std::span<float, 2> out) const { out[0] = float(state.count), out[1] = float(state.luck); }
};

struct Run {
  static constexpr std::size_t envs = 10;
  static constexpr std::int64_t steps = 16;
  std::vector<float> observation = std::vector<float>(envs * steps * 2);
  std::vector<float> reward = std::vector<float>(envs * steps);
  std::vector<std::uint8_t> terminated = std::vector<std::uint8_t>(envs * steps), truncated = terminated;
  std::vector<std::int32_t> episode_id = std::vector<std::int32_t>(envs * steps);
  std::vector<std::int64_t> actions = std::vector<std::int64_t>(envs, 1);

  std::unique_ptr<AnyPool> make(int threads, double toil_us = 0) const {
    const PoolSettings settings{.size = envs,
                                .num_threads = threads,
                                .max_episode_steps = 7,
                                .autoreset = Autoreset::same_step,
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

}  // namespace

int main() {
  for (const int threads : {1, 2, 4}) {
    failing_environment_is_named_and_alone(threads);
    steady_rounds_do_not_allocate(threads);
  }
  threads_do_not_change_results();
  forked_child_is_told();
  return failures == 0 ? 0 : 1;
}
