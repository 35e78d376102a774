/// An environment for tests of the engine: it fails and toils when it is told to.
#pragma once

#include <atomic>
#include <stdexcept>
#include <thread>

#include "penstock/env.hpp"
#include "penstock/threads/spin_wait.hpp"

namespace penstock {

/// Steps with a toil that have begun; whether a negative toil waits in all threads but one; how many steps do.
inline std::atomic<int> fuse_steps_begun{0}, fuse_steps_held{0};
inline std::atomic<bool> fuse_is_held{false};
inline std::atomic<std::thread::id> fuse_free_thread{};

/// Counts up; its episodes end after `length` steps; it throws when told to with action 2. A step takes `toil_us`
/// microseconds at least: where that is long enough, the whole team is called for it. A negative toil waits
/// while `fuse_is_held`.
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
    if (config.toil_us != 0) ++fuse_steps_begun;
    if (config.toil_us < 0 && std::this_thread::get_id() != fuse_free_thread.load()) {
      ++fuse_steps_held;
      while (fuse_is_held) std::this_thread::yield();
      --fuse_steps_held;
    }
    if (config.toil_us > 0)
      for (const std::int64_t end = nanoseconds_now() + 1000 * config.toil_us; nanoseconds_now() < end;) continue;
    return {.reward = state.luck, .terminated = ++state.count >= config.length};
  }
  void observe(std::span<float, 2> out) const { out[0] = float(state.count), out[1] = float(state.luck); }
};

}  // namespace penstock
