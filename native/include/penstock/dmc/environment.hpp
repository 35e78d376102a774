/// The suite's tasks with a number of controls as one environment: an id is its number in the configuration, so that all
/// share one pool's machine code.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "penstock/dmc/suite.hpp"
#include "penstock/env.hpp"
#include "penstock/env/variants.hpp"

namespace penstock::dmc {

/// The bounds of every control. A task whose controls have others needs a type of its own.
template <std::size_t Controls>
inline constexpr auto bounds = Box<Controls>::filled(-1.0f, 1.0f);
/// The quadruped's: yaw, lift and extension of each leg.
template <>
inline constexpr auto bounds<12> = Box<12>::between({-1, -1, -.8, -1, -1, -.8, -1, -1, -.8, -1, -1, -.8},
                                                    {1, 1.1, .8, 1, 1.1, .8, 1, 1.1, .8, 1, 1.1, .8});

/// `Endless`: tasks without a time limit, whose controls have no bounds.
template <std::size_t Controls, bool Endless = false>
struct Environment {
  using Shared = Suite;
  static constexpr Info info{.id = "dmc"};  // of no task: see variants()
  static constexpr auto action = Endless ? Box<Controls>::filled(-unlimited, unlimited) : bounds<Controls>;
  static constexpr auto observation = BoxOf<double, 256>::filled(-unlimited, unlimited);

  struct Config {
    std::int64_t task = 0;
    PENSTOCK_FIELDS(Config, task)
    [[nodiscard]] const char* problem() const {
      const auto& all = listed();
      const bool known = task >= 0 && task < std::int64_t(all.size());
      return known && fits(all[std::size_t(task)]) ? nullptr : "task is the number of an id: leave it out";
    }
  } config;

  explicit Environment(const Shared& shared) : suite_(&shared) {}

  static auto variants() {
    std::vector<Variant<Config>> found;
    const auto& all = listed();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (fits(all[i]))
        found.push_back({{.id = all[i].id, .max_episode_steps = Endless ? 0 : 1000}, {.task = std::int64_t(i)}});
    return found;
  }
  static bool fits(const Listed& listed) { return listed.controls == Controls && listed.endless == Endless; }
  /// 1 for the configuration that no id has.
  static std::size_t observed_values(const Config& config) {
    return config.problem() == nullptr ? listed()[std::size_t(config.task)].observed : 1;
  }

  void reset(Rng& rng) {
    Physics& now = physics();
    now.reset();
    task_->begin(now, rng);
    now.forward_without_actuators();
  }

  Step step(std::span<const float, Controls> control) {
    Physics& now = physics();
    for (std::size_t i = 0; i < Controls; ++i) now.data().ctrl[i] = std::clamp(control[i], action.low[i], action.high[i]);
    now.step();
    return {.reward = task_->reward(now), .terminated = task_->ends(now)};
  }

  void observe(std::span<double> out) const {
    Writer writer(out);
    task_->observe(physics(), writer);
  }

  [[nodiscard]] std::size_t state_size() const { return physics().state_size(); }
  void save(std::span<double> out) const { physics().save(out); }
  void load(std::span<const double> in) { physics().load(in); }

 private:
  /// Made when it is first needed, since the task is not known before the configuration is.
  Physics& physics() const {
    if (number_ != config.task) {
      const Loaded& loaded = suite_->loaded(config.task);
      auto made = std::make_unique<Physics>(*loaded.model, loaded.substeps);
      loaded.task->equip(*made);
      physics_ = std::move(made);
      task_ = loaded.task.get();
      number_ = config.task;
    }
    return *physics_;
  }

  const Shared* suite_;
  mutable std::unique_ptr<Physics> physics_;
  mutable const Task* task_ = nullptr;
  mutable std::int64_t number_ = -1;
};

}  // namespace penstock::dmc
