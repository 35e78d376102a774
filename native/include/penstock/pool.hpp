/// Steps many environments of one type: contiguous, in blocks on a team of threads, without a lock or (once its lists
/// have grown) an allocation per step. What comes out does not depend on the number of threads.
///
/// One call at a time: the binding refuses a second one while the first runs.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <utility>

#include "penstock/actions.hpp"
#include "penstock/any_pool.hpp"
#include "penstock/slot.hpp"
#include "penstock/state.hpp"
#include "penstock/workers.hpp"

namespace penstock {

template <Environment E>
class Pool final : public AnyPool {
  using Action = ActionSpace<E>;

 public:
  explicit Pool(const PoolSettings& settings)
      : max_episode_steps_(settings.max_episode_steps), autoreset_(settings.autoreset),
        interrupted_(settings.interrupted), shared_(share(settings.resources)), description_(described()),
        slots_(make_slots(settings)),
        block_size_(block_size(settings)), tallies_(static_cast<std::size_t>(settings.num_threads)),
        notes_((settings.size + block_size_ - 1) / block_size_),
        workers_(settings.num_threads, notes_.size(), settings.thread_affinity) {}

  [[nodiscard]] const Description& description() const override { return description_; }
  [[nodiscard]] std::size_t size() const override { return slots_.size(); }
  [[nodiscard]] std::int64_t max_episode_steps() const override { return max_episode_steps_; }
  [[nodiscard]] int num_threads() const override { return workers_.size(); }
  [[nodiscard]] bool is_brief() const override { return workers_.pace().is_brief(); }

  void reset(std::size_t environment, const std::uint64_t* seed) override {
    next_step_ = no_round;
    ready_ = false;
    Slot<E>& slot = slots_[environment];
    require_generator(environment, seed);
    const std::int64_t episode_id = seed != nullptr ? 0 : slot.episode_id + 1;
    if (seed != nullptr) {
      slot.rng = Rng(*seed);
      slot.seeded = true;
    }
    slot.begin_episode(episode_id);
  }

  void configure(std::span<const std::vector<double>> config) override {
    std::vector<typename E::Config> changed;
    changed.reserve(slots_.size());
    for (std::size_t env = 0; env < slots_.size(); ++env)
      penstock::configure(changed.emplace_back(slots_[env].env.config), env, config);
    for (std::size_t env = 0; env < slots_.size(); ++env) slots_[env].env.config = changed[env];
  }

  void observe(void* out) const override {
    require_started();
    for (std::size_t env = 0; env < slots_.size(); ++env) slots_[env].observe(out, env);
  }
  void report(double* out) const override {
    for (std::size_t env = 0; env < slots_.size(); ++env) slots_[env].report(out, env);
  }

  std::size_t step(const void* actions, const StepBuffers& out) override {
    require_started();
    if (next_step_ != no_round) throw std::logic_error("a round is open: end_round() or reset before step()");
    check_actions<Action>(actions, slots_.size());
    if (autoreset_ == Autoreset::disabled)
      for (std::size_t env = 0; env < slots_.size(); ++env) require_going(env);
    const StepBuffers rows = out;  // a copy of its own, which the compiler knows that no environment writes to
    each_block([&, rows](std::size_t first, std::size_t last, Tally& tally, Notes&) {
      std::size_t ended = 0;
      each_environment(first, last, tally, [&](std::size_t env) { ended += step_row(slots_[env], actions, env, env, rows); });
      tally.ended += ended;
    });
    std::size_t ended = 0;
    for (Tally& tally : tallies_) ended += std::exchange(tally.ended, 0);
    return ended;
  }

  void check_rows(const void* actions, std::span<const std::int32_t> environments) override {
    if (next_step_ != no_round) throw std::logic_error("a round is open: end_round() or reset before send()");
    for (const std::int32_t env : environments)
      if (!slots_[static_cast<std::size_t>(env)].started) [[unlikely]]
        throw std::logic_error("environment " + std::to_string(env) + " is not ready: reset it first");
    check_actions<Action>(actions, environments.size(), environments.data());
    if (autoreset_ == Autoreset::disabled)
      for (const std::int32_t env : environments) require_going(static_cast<std::size_t>(env));
    ready_ = false;  // threads will not say so here if an environment fails
  }

  void seed(std::size_t environment, const std::uint64_t* seed) override {
    Slot<E>& slot = slots_[environment];
    require_generator(environment, seed);
    next_step_ = no_round;
    ready_ = slot.started = false;
    if (seed != nullptr) slot.rng = Rng(*seed), slot.seeded = true, slot.episode_id = -1;
  }

  std::size_t step_rows(const void* actions, std::span<const std::int32_t> environments, std::size_t first_row,
                        const StepBuffers& out, std::exception_ptr& error) noexcept override {
    return each_row(environments, error, [&](std::size_t env, std::size_t index) {
      step_row(slots_[env], actions, index, first_row + index, out);
    });
  }
  std::size_t reset_rows(std::span<const std::int32_t> environments, std::size_t first_row, const StepBuffers& out,
                         std::exception_ptr& error) noexcept override {
    return each_row(environments, error,
                    [&](std::size_t env, std::size_t index) { reset_row(slots_[env], first_row + index, out); });
  }

  void begin_round(const RoundBuffers& buffers) override {
    require_started();
    for (Slot<E>& slot : slots_)
      if (slot.ended) slot.begin_episode(slot.episode_id + 1);
    observe(buffers.observation);
    for (Notes& notes : notes_) notes.clear();
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
    const bool is_last = t + 1 == round_.steps;
    each_block([&](std::size_t first, std::size_t last, Tally& tally, Notes& notes) {
      each_environment(first, last, tally, [&](std::size_t env) {
        Slot<E>& slot = slots_[env];
        const std::size_t row = first_row + env;
        const StepOf<E> step = slot.step(action_of<Action>(actions, env), max_episode_steps_);
        put_reward<E>(step, round_.reward, row);
        round_.terminated[row] = step.terminated;
        round_.truncated[row] = step.truncated;
        round_.episode_id[row] = static_cast<std::int32_t>(slot.episode_id);
        if (step.terminated || step.truncated) {
          notes.add(slot, static_cast<std::int64_t>(row), static_cast<std::int64_t>(env), step.terminated,
                    step.truncated);
          slot.begin_episode(slot.episode_id + 1);
        }
        if (!is_last) slot.observe(round_.observation, row + slots_.size());
      });
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
    return merge<E>(notes_, slots_, round_);
  }

  [[nodiscard]] std::vector<Column> columns() const override { return state_columns<E>(slots_); }
  void save(std::span<void* const> columns) const override {
    require_started();
    save_slots<E>(slots_, columns);
  }
  void restore(std::span<const void* const> columns) override {
    check_state<E>(slots_, columns);
    restore_slots<E>(slots_, columns);
    next_step_ = no_round;
  }

 private:
  using Notes = penstock::Notes<E>;
  static constexpr std::int64_t no_round = -1;

  static auto share(const std::string& resources) {
    if constexpr (SharesSomething<E>) return std::make_unique<const typename E::Shared>(resources);
    else return nullptr;
  }

  [[nodiscard]] Description described() const {
    Description d = describe<E>();
    if constexpr (SizesItself<E>) shared_->describe(d);
    return d;
  }

  [[nodiscard]] std::vector<Slot<E>> make_slots(const PoolSettings& settings) const {
    std::vector<Slot<E>> slots;
    slots.reserve(settings.size);
    for (std::size_t env = 0; env < settings.size; ++env) {
      if constexpr (SharesSomething<E>) slots.emplace_back(E(*shared_));
      else slots.emplace_back(E{});
      penstock::configure(slots.back().env.config, env, settings.config);
    }
    return slots;
  }

  void reset_row(Slot<E>& slot, std::size_t row, const StepBuffers& out) {
    slot.begin_episode(slot.episode_id + 1);
    for (std::size_t i = 0; i < reward_size<E>; ++i) out.reward[row * reward_size<E> + i] = 0.0;
    out.terminated[row] = out.truncated[row] = false;
    out.fresh[row] = true;
    slot.observe(out.observation, row);
    slot.report(out.report, row);
  }

  /// One step of one environment, or the reset that stands in for it; whether an episode ended.
  bool step_row(Slot<E>& slot, const void* actions, std::size_t action, std::size_t row, const StepBuffers& out) {
    if (slot.ended) {  // only Autoreset::next_step gets here
      reset_row(slot, row, out);
      return false;
    }
    const StepOf<E> step = slot.step(action_of<Action>(actions, action), max_episode_steps_);
    put_reward<E>(step, out.reward, row);
    out.terminated[row] = step.terminated;
    out.truncated[row] = step.truncated;
    const bool ended = step.terminated || step.truncated;
    const bool resets = ended && autoreset_ == Autoreset::same_step;
    out.fresh[row] = resets;
    if (ended) {
      out.episode_return[row] = slot.total_reward;
      out.episode_length[row] = slot.elapsed_steps;
      if (resets) {
        slot.observe(out.final_observation, row);
        slot.report(out.final_report, row);
        slot.begin_episode(slot.episode_id + 1);
      } else {
        slot.ended = true;
      }
    }
    slot.observe(out.observation, row);
    slot.report(out.report, row);
    return ended;
  }

  /// How many rows were done before one threw.
  template <class Body>
  std::size_t each_row(std::span<const std::int32_t> environments, std::exception_ptr& error, Body&& body) noexcept {
    for (std::size_t index = 0; index < environments.size(); ++index) {
      const auto env = static_cast<std::size_t>(environments[index]);
      try {
        body(env, index);
      } catch (...) {
        slots_[env].started = false;
        error = explained(env, std::current_exception());
        return index;
      }
    }
    return environments.size();
  }

  void require_generator(std::size_t env, const std::uint64_t* seed) const {
    if (seed == nullptr && !slots_[env].seeded)
      throw std::invalid_argument("environment " + std::to_string(env) + " has no generator yet: give a seed");
  }

  void require_going(std::size_t env) const {
    if (slots_[env].ended) [[unlikely]]
      throw std::logic_error("the episode of environment " + std::to_string(env) +
                             " has ended and nothing resets it: reset it with options={'reset_mask': ...}, or make the "
                             "pool with another autoreset_mode");
  }

  void require_started() const {
    if (!ready_) [[unlikely]]
      ready_ = std::all_of(slots_.begin(), slots_.end(), [](const Slot<E>& slot) { return slot.started; });
    if (!ready_) [[unlikely]]
      throw std::logic_error("not every environment is ready: reset(), reset_ids() or restore() first");
  }

  /// How many environments make a block, which depends on the settings alone. Several blocks a thread let those that
  /// are done help others; large ones do not share a cache line of the flags.
  static std::size_t block_size(const PoolSettings& settings) {
    const std::size_t blocks = 8 * static_cast<std::size_t>(settings.num_threads);
    const std::size_t needed = (settings.size + Workers::most_blocks - 1) / Workers::most_blocks;
    const std::size_t size = std::max((settings.size + blocks - 1) / blocks, needed);
    return size < 32 ? size : (size + 63) / 64 * 64;
  }

  /// Calls body(first, last, tally, notes) for every block, on the team. The first failure of an environment is thrown
  /// again when all are through. A step that is given up leaves environments that need a reset.
  template <class Body>
  void each_block(Body&& body) {
    workers_.run(
        [&](std::size_t member, std::size_t first, std::size_t last) noexcept {
          for (std::size_t block = first; block < last; ++block) {
            const std::size_t begin = block * block_size_, end = std::min(begin + block_size_, slots_.size());
            if (given_up_.load(std::memory_order_relaxed)) [[unlikely]]
              for (std::size_t env = begin; env < end; ++env) slots_[env].started = false;
            else
              body(begin, end, tallies_[member], notes_[block]);
          }
        },
        [&] {
          if (interrupted_ != nullptr && interrupted_()) given_up_.store(true, std::memory_order_relaxed);
        });
    if (given_up_.exchange(false)) [[unlikely]] {
      forget_step();
      throw Interrupted();
    }
    for (const Tally& tally : tallies_)
      if (tally.error) [[unlikely]] fail();
  }

  /// Calls body(env) for those in [first, last). An exception stops its own environment alone, which needs a reset.
  template <class Body>
  void each_environment(std::size_t first, std::size_t last, Tally& tally, Body&& body) noexcept {
    for (std::size_t env = first; env < last; ++env) {
      try {
        body(env);
      } catch (...) {
        slots_[env].started = false;
        tally.note_failure(env);
      }
    }
  }

  [[noreturn]] void fail() {
    const Tally* first = nullptr;
    for (const Tally& tally : tallies_)
      if (tally.error && (first == nullptr || tally.failed < first->failed)) first = &tally;
    const std::exception_ptr error = explained(first->failed, first->error);
    forget_step();
    std::rethrow_exception(error);
  }

  void forget_step() noexcept {
    for (Tally& tally : tallies_) tally = Tally();
    next_step_ = no_round;
    ready_ = false;
  }

  static std::exception_ptr explained(std::size_t env, const std::exception_ptr& error) noexcept {
    const std::string who = "environment " + std::to_string(env) + " of " + E::info.id + " failed: ";
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& reason) {
      return std::make_exception_ptr(std::runtime_error(who + reason.what()));
    } catch (...) {
      return std::make_exception_ptr(std::runtime_error(who + "it threw something that is not a std::exception"));
    }
  }

  const std::int64_t max_episode_steps_;
  const Autoreset autoreset_;
  bool (*const interrupted_)();
  const decltype(share("")) shared_;  ///< before the slots, which refer to it
  const Description description_;
  std::vector<Slot<E>> slots_;
  const std::size_t block_size_;
  std::vector<Tally> tallies_;  ///< one a thread
  std::vector<Notes> notes_;    ///< one a block
  std::atomic<bool> given_up_{false};
  RoundBuffers round_;
  std::int64_t next_step_ = no_round;
  mutable bool ready_ = false;  ///< every slot is started, as far as is known
  Workers workers_;  // last: its threads must be gone before what they work on
};

template <Environment E>
CatalogEntry catalog_entry() {
  CatalogEntry entry{describe<E>(), [](const PoolSettings& settings) -> std::unique_ptr<AnyPool> {
                       return std::make_unique<Pool<E>>(settings);
                     }};
  if constexpr (SizesItself<E>)
    entry.complete = [](Description& d, const std::string& resources) { typename E::Shared(resources).describe(d); };
  return entry;
}

}  // namespace penstock
