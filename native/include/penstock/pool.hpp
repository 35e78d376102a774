/// Steps many environments of one type: contiguous, in static chunks on a team of threads, without a lock or (once its
/// lists have grown) an allocation per step. What comes out does not depend on the number of threads.
///
/// One call at a time: the binding refuses a second one while the first runs.
#pragma once

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "penstock/actions.hpp"
#include "penstock/any_pool.hpp"
#include "penstock/slot.hpp"
#include "penstock/state.hpp"
#include "penstock/workers.hpp"

namespace penstock {

template <Environment E>
class Pool final : public AnyPool {
  using Action = ActionSpace<E>;
  static constexpr std::size_t width = observation_size<E>;

 public:
  Pool(std::size_t size, int num_threads, std::int64_t max_episode_steps, std::span<const std::vector<double>> config)
      : max_episode_steps_(max_episode_steps), slots_(size), chunks_(static_cast<std::size_t>(num_threads)),
        workers_(num_threads) {
    for (std::size_t env = 0; env < size; ++env) configure(slots_[env].env.config, env, config);
  }

  [[nodiscard]] const Description& description() const override { return description_; }
  [[nodiscard]] std::size_t size() const override { return slots_.size(); }
  [[nodiscard]] std::int64_t max_episode_steps() const override { return max_episode_steps_; }
  [[nodiscard]] int num_threads() const override { return workers_.size(); }

  void reset(std::size_t environment, const std::uint64_t* seed) override {
    next_step_ = no_round;
    ready_ = false;
    Slot<E>& slot = slots_[environment];
    if (seed == nullptr && !slot.seeded)
      throw std::invalid_argument("environment " + std::to_string(environment) + " has no generator yet: give a seed");
    const std::int64_t episode_id = seed != nullptr ? 0 : slot.episode_id + 1;
    if (seed != nullptr) {
      slot.rng = Rng(*seed);
      slot.seeded = true;
    }
    slot.begin_episode(episode_id);
  }

  void observe(float* out) const override {
    require_started();
    for (std::size_t env = 0; env < slots_.size(); ++env) slots_[env].observe(out + env * width);
  }

  void step(const void* actions, const StepBuffers& out) override {
    require_started();
    if (next_step_ != no_round) throw std::logic_error("a round is open: end_round() or reset before step()");
    check_actions<Action>(actions, slots_.size());
    each_environment([&](std::size_t env, Chunk&) {
      Slot<E>& slot = slots_[env];
      const Step step = slot.step(action_of<Action>(actions, env), max_episode_steps_);
      out.reward[env] = step.reward;
      out.terminated[env] = step.terminated;
      out.truncated[env] = step.truncated;
      if (step.terminated || step.truncated) {
        slot.observe(out.final_observation + env * width);
        slot.begin_episode(slot.episode_id + 1);
      }
      slot.observe(out.observation + env * width);
    });
  }

  void begin_round(const RoundBuffers& buffers) override {
    observe(buffers.observation);
    for (Chunk& chunk : chunks_) chunk.clear();
    round_ = buffers;
    next_step_ = 0;
  }

  void step_round(std::int64_t t, const void* actions) override {
    require_started();
    if (next_step_ == no_round) throw std::logic_error("no round is open: call begin_round() first");
    if (t != next_step_ || t >= round_.steps)
      throw std::invalid_argument("step_round got t=" + std::to_string(t) + ", expected " +
                                  (next_step_ < round_.steps ? std::to_string(next_step_) : "end_round()"));
    check_actions<Action>(actions, slots_.size());
    const std::size_t first_row = static_cast<std::size_t>(t) * slots_.size();
    float* next = t + 1 < round_.steps ? round_.observation + (first_row + slots_.size()) * width : nullptr;
    each_environment([&](std::size_t env, Chunk& mine) {
      Slot<E>& slot = slots_[env];
      const std::size_t row = first_row + env;
      const Step step = slot.step(action_of<Action>(actions, env), max_episode_steps_);
      round_.reward[row] = static_cast<float>(step.reward);
      round_.terminated[row] = step.terminated;
      round_.truncated[row] = step.truncated;
      round_.episode_id[row] = static_cast<std::int32_t>(slot.episode_id);
      if (step.terminated || step.truncated) {
        mine.add(slot, static_cast<std::int64_t>(row), static_cast<std::int64_t>(env), step);
        slot.begin_episode(slot.episode_id + 1);
      }
      if (next != nullptr) slot.observe(next + env * width);
    });
    ++next_step_;
  }

  RoundResult end_round() override {
    require_started();
    if (next_step_ == no_round) throw std::logic_error("no round is open: call begin_round() first");
    if (next_step_ != round_.steps)
      throw std::logic_error("the round has " + std::to_string(round_.steps) + " steps, only " +
                             std::to_string(next_step_) + " were made");
    next_step_ = no_round;
    return merge<E>(chunks_, slots_, round_);
  }

  [[nodiscard]] std::vector<Column> columns() const override { return state_columns<E>(); }
  void save(std::span<void* const> columns) const override {
    require_started();
    save_slots<E>(slots_, columns);
  }
  void restore(std::span<const void* const> columns) override {
    std::vector<Slot<E>> restored = restore_slots<E>(slots_, columns);
    slots_.swap(restored);
    next_step_ = no_round;
  }

 private:
  using Chunk = penstock::Chunk<E>;
  static constexpr std::int64_t no_round = -1;

  void require_started() const {
    if (!ready_) [[unlikely]]
      ready_ = std::all_of(slots_.begin(), slots_.end(), [](const Slot<E>& slot) { return slot.started; });
    if (!ready_) [[unlikely]]
      throw std::logic_error("not every environment is ready: reset(), reset_ids() or restore() first");
  }

  /// Runs the body for every environment, each chunk on its thread. An exception stops its own environment alone, which
  /// needs a reset afterwards; the first one, by environment, is thrown again with the environment's number.
  template <class Body>
  void each_environment(Body&& body) {
    const std::size_t team = chunks_.size(), count = slots_.size();
    workers_.run([&](int member) noexcept {
      const auto index = static_cast<std::size_t>(member);
      Chunk& mine = chunks_[index];
      for (std::size_t env = count * index / team; env < count * (index + 1) / team; ++env) {
        try {
          body(env, mine);
        } catch (...) {
          slots_[env].started = false;
          if (!mine.error) mine.error = std::current_exception(), mine.failed = env;
        }
      }
    });
    for (Chunk& chunk : chunks_)
      if (chunk.error) [[unlikely]] fail(chunk);
  }

  [[noreturn]] void fail(Chunk& first) {
    const std::exception_ptr error = first.error;
    const std::string who = "environment " + std::to_string(first.failed) + " of " + E::info.id + " failed: ";
    for (Chunk& chunk : chunks_) chunk.error = nullptr;
    next_step_ = no_round;
    ready_ = false;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& reason) {
      throw std::runtime_error(who + reason.what());
    } catch (...) {
      throw std::runtime_error(who + "it threw something that is not a std::exception");
    }
  }

  const Description description_ = describe<E>();
  const std::int64_t max_episode_steps_;
  std::vector<Slot<E>> slots_;
  std::vector<Chunk> chunks_;
  RoundBuffers round_;
  std::int64_t next_step_ = no_round;
  mutable bool ready_ = false;  ///< every slot is started, as far as is known
  Workers workers_;  // last: its threads must be gone before what they work on
};

template <Environment E>
CatalogEntry catalog_entry() {
  return {describe<E>(), [](std::size_t size, int num_threads, std::int64_t max_episode_steps,
                            std::span<const std::vector<double>> config) -> std::unique_ptr<AnyPool> {
            return std::make_unique<Pool<E>>(size, num_threads, max_episode_steps, config);
          }};
}

}  // namespace penstock
