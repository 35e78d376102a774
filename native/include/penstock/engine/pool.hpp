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

#include "penstock/env/actions.hpp"
#include "penstock/engine/any_pool.hpp"
#include "penstock/engine/blocks.hpp"
#include "penstock/engine/refusals.hpp"
#include "penstock/engine/state.hpp"
#include "penstock/env/variants.hpp"
#include "penstock/simd/group.hpp"
#include "penstock/threads/team.hpp"

namespace penstock {

template <Environment E>
class Pool final : public AnyPool {
  using Action = ActionSpace<E>;

 public:
  explicit Pool(const PoolSettings& settings)
      : max_episode_steps_(settings.max_episode_steps), autoreset_(settings.autoreset),
        interrupted_(settings.interrupted), shared_(share(settings.resources)), description_(described(settings)),
        slots_(make_slots(settings)),
        group_stepper_(chosen_stepper()), block_size_(block_size(settings)),
        stats_(static_cast<std::size_t>(settings.num_threads)),
        logs_((settings.size + block_size_ - 1) / block_size_),
        team_(settings.num_threads, logs_.size(), settings.thread_affinity) {}

  [[nodiscard]] const Description& description() const override { return description_; }
  [[nodiscard]] std::size_t size() const override { return slots_.size(); }
  [[nodiscard]] std::int64_t max_episode_steps() const override { return max_episode_steps_; }
  [[nodiscard]] int num_threads() const override { return team_.size(); }
  [[nodiscard]] bool is_brief() const override { return team_.sizer().is_brief(); }

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
    for (std::size_t env = 0; env < slots_.size(); ++env) require_width(changed[env], env, slots_.front().width());
    for (std::size_t env = 0; env < slots_.size(); ++env) slots_[env].env.config = changed[env];
    group_stepper_ = chosen_stepper();
  }

  void observe(void* out) const override {
    require_started();
    for (std::size_t env = 0; env < slots_.size(); ++env) slots_[env].observe(out, env);
  }
  void report(double* out) const override {
    for (std::size_t env = 0; env < slots_.size(); ++env) slots_[env].report(out, env);
  }

  void draw(std::size_t environment, std::span<std::uint8_t> out) const override {
    require_started();
    if constexpr (Draws<E>) {
      Canvas canvas(E::frame, out);
      slots_[environment].env.draw(canvas);
    }
  }

  std::size_t step(const void* actions, const StepBuffers& out) override;

  void check_rows(const void* actions, std::span<const std::int32_t> environments) override;

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

  void begin_round(const RoundBuffers& buffers) override;
  void step_round(std::int64_t t, const void* actions) override;
  RoundResult end_round() override;

  [[nodiscard]] std::vector<Column> columns() const override { return state_columns<E>(slots_); }
  void save(std::span<void* const> columns) const override {
    require_started();
    save_slots<E>(slots_, columns);
  }
  void restore(std::span<const void* const> columns) override {
    restore_slots<E>(slots_, columns);
    next_step_ = no_round;
  }

 private:
  static constexpr std::int64_t no_round = -1;

  static auto share(const std::string& resources) {
    if constexpr (SharesSomething<E>) return std::make_unique<const typename E::Shared>(resources);
    else return nullptr;
  }

  [[nodiscard]] Description described(const PoolSettings& settings) const {
    Description d = describe<E>();
    if constexpr (HasVariants<E>) describe_variant<E>(d, settings.variant);
    if (!settings.id.empty()) d.id = settings.id;
    if constexpr (SizedByConfig<E>) resize_observation(d, observed_values<E>(settings.config));
    if constexpr (SizesItself<E>) shared_->describe(d);
    return d;
  }

  [[nodiscard]] std::vector<Slot<E>> make_slots(const PoolSettings& settings) const {
    std::vector<Slot<E>> slots;
    slots.reserve(settings.size);
    for (std::size_t env = 0; env < settings.size; ++env) {
      if constexpr (SharesSomething<E>) slots.emplace_back(E(*shared_));
      else slots.emplace_back(E{});
      if constexpr (NumbersItsVariants<E>) slots.back().env.variant = std::int64_t(settings.variant);
      penstock::configure(slots.back().env.config, env, settings.config);
      require_width(slots.back().env.config, env, slots.front().width());
    }
    return slots;
  }

  static void require_width(const typename E::Config& config, std::size_t env, std::size_t width) {
    if constexpr (SizedByConfig<E>) {
      if (const std::size_t observed = E::observed_values(config); observed != width) refuse_width(env, observed, width);
    }
  }

  // Functions of once an episode are apart: inlined into each kind of step, they cost the compiler most of its time.

  [[gnu::noinline]] static void begin_next_episode(Slot<E>& slot) { slot.begin_episode(slot.episode_id + 1); }
  [[gnu::noinline]] static void reset_row(Slot<E>& slot, std::size_t row, const StepBuffers& out);
  /// Hands over what there is to say of an episode that ended in this step, and with Autoreset::same_step begins the next.
  [[gnu::noinline]] void end_row(Slot<E>& slot, std::size_t row, const StepBuffers& out) const;
  [[gnu::noinline]] static void log_episode(Slot<E>& slot, BlockLog& log, std::size_t row, std::size_t env,
                                            const StepOf<E>& step);

  /// Steps one environment, or resets it in place of the step; returns whether an episode ended. `made`: the step, where
  /// the environment has made it already.
  bool step_row(Slot<E>& slot, const void* actions, std::size_t action, std::size_t row, const StepBuffers& out,
                const StepOf<E>* made = nullptr);

  /// Returns what steps several environments at once, or nullptr: they then go one by one.
  [[nodiscard]] auto chosen_stepper() const {
    if constexpr (StepsInGroups<E>) {
      const auto& first = slots_.front().env.config;
      const bool alike = std::all_of(slots_.begin(), slots_.end(), [&](const Slot<E>& slot) {
        return are_alike(&first, &slot.env.config, member_table<typename E::Config>);
      });
      return alike && E::can_step_group(first) ? group_stepper<E>() : nullptr;
    } else {
      return nullptr;
    }
  }

  /// Returns the number of rows that were finished before one threw.
  template <class Body>
  std::size_t each_row(std::span<const std::int32_t> environments, std::exception_ptr& error, Body&& body) noexcept;

  void require_generator(std::size_t env, const std::uint64_t* seed) const {
    if (seed == nullptr && !slots_[env].seeded) refuse_unseeded(env);
  }

  void require_going(std::size_t env) const {
    if (slots_[env].ended) [[unlikely]] refuse_ended(env);
  }

  void require_started() const {
    if (!ready_) [[unlikely]]
      ready_ = std::all_of(slots_.begin(), slots_.end(), [](const Slot<E>& slot) { return slot.started; });
    if (!ready_) [[unlikely]] refuse_unready_pool();
  }

  /// Returns the number of environments in a block, which depends on the settings alone. Several blocks a thread let
  /// those that are done help others; large ones do not share a cache line of the flags.
  static std::size_t block_size(const PoolSettings& settings);

  /// Calls body(first, last, stats, log) for every block, on the team. The first failure of an environment is thrown
  /// again when all are through. A step that is given up leaves environments that need a reset.
  template <class Body>
  void each_block(Body&& body);

  /// Calls body(env, made) for those in [first, last): `made` is the step of `env`, if it was stepped with others at once,
  /// otherwise nullptr, and body steps it.
  template <class Body>
  void each_step(std::size_t first, std::size_t last, ThreadStats& stats, const void* actions, Body&& body) noexcept;

  /// Calls body(env) for those in [first, last). An exception stops its own environment alone, which needs a reset.
  template <class Body>
  void each_environment(std::size_t first, std::size_t last, ThreadStats& stats, Body&& body) noexcept;

  [[noreturn, gnu::cold]] void fail();
  [[gnu::cold]] void forget_step() noexcept;

  const std::int64_t max_episode_steps_;
  const Autoreset autoreset_;
  bool (*const interrupted_)();
  const decltype(share("")) shared_;  ///< before the slots, which refer to it
  const Description description_;
  std::vector<Slot<E>> slots_;
  decltype(std::declval<const Pool&>().chosen_stepper()) group_stepper_;
  const std::size_t block_size_;
  std::vector<ThreadStats> stats_;  ///< one a thread
  std::vector<BlockLog> logs_;    ///< one a block
  std::atomic<bool> given_up_{false};
  RoundBuffers round_;
  std::int64_t next_step_ = no_round;
  mutable bool ready_ = false;  ///< every slot is started, as far as is known
  ThreadTeam team_;  // last: its threads must be gone before what they work on
};

}  // namespace penstock

#include "penstock/engine/rollout.hpp"
#include "penstock/engine/stepping.hpp"
