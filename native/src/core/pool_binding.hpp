/// The pool that Python holds. Sizes and types are checked with the interpreter lock held; stepping runs without it.
#pragma once

#include <pybind11/stl.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "action_args.hpp"
#include "async_binding.hpp"
#include "bindings.hpp"
#include "result_slabs.hpp"
#include "step_infos.hpp"

namespace penstock {

class PoolBinding {
 public:
  PoolBinding(const std::string& id, std::int64_t num_envs, int num_threads, std::int64_t max_episode_steps,
              const std::string& autoreset, const std::map<std::string, py::array>& config, bool statistics,
              bool thread_affinity, const std::optional<std::string>& resources);

  /// Changes the configuration; fields that are not given get their presets, as in the constructor.
  void configure(const std::map<std::string, py::array>& config);

  void reset(const py::array& seeds, const py::array& seeded, const py::array& mask);

  py::array observation();

  /// Returns [num_envs, reports], of the observation's moment.
  py::array report();

  /// Returns the picture of one environment, [height, width, 3].
  py::array draw(std::int64_t environment);

  /// Returns observation, reward, terminated, truncated, and infos: an empty dict where there is nothing to report, or
  /// None where they must be asked for.
  py::tuple step(const py::handle& actions);

  /// Steps these environments alone, in the calling thread: observation, reward, terminated, truncated, report, return
  /// and length of the episode (both meaningful where one ended), a row each in the given order.
  py::tuple step_rows(const py::handle& actions, const py::array& environments);

  /// Returns the extras of the latest step, as StepInfos has them.
  py::tuple ended(const py::array& rows);

  // The asynchronous interface

  /// Sets the rows of a batch, from the next one on.
  void set_batch(std::int64_t batch_size, bool deterministic);
  void async_reset(const py::array& seeds, const py::array& seeded, const py::object& environments);
  void send(const py::handle& actions, const py::object& environments) {
    const Use use(*this, true);
    require_async().send(actions, environments);
  }
  py::tuple recv() {
    const Use use(*this, true);
    return require_async().recv();
  }
  py::tuple received_ended(const py::array& rows) {
    const Use use(*this, true);
    return require_async().step_infos().ended(rows);
  }
  py::array received_report() {
    const Use use(*this, true);
    return require_async().step_infos().report();
  }
  [[nodiscard]] std::size_t under_way() const { return async_ ? async_->under_way() : 0; }
  /// Cancels what is under way; those environments must be reset or restored.
  void drain();

  void begin_round(const py::array& observation, const py::array& reward, const py::array& terminated,
                   const py::array& truncated, const py::array& episode_id);

  void step_round(std::int64_t t, const py::object& actions);

  py::tuple end_round();

  /// Returns the names of the saved state's arrays.
  py::tuple columns();

  py::dict save();

  void restore(const std::map<std::string, py::object>& saved);

  void close();

  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  /// One call at a time: stepping runs without the interpreter lock, so another thread could get in between.
  class Use {
   public:
    /// `asynchronous` calls may come while environments are under way, no others.
    explicit Use(PoolBinding& owner, bool asynchronous = false) : owner_(owner) {
      if (owner.busy_.test_and_set(std::memory_order_acquire))
        throw std::runtime_error("this pool is being used by another thread: a pool is for one thread at a time");
      if (!owner.pool_) {
        owner.busy_.clear(std::memory_order_release);
        throw std::runtime_error("this pool is closed: make a new one");
      }
      if (const std::size_t under_way = asynchronous ? 0 : owner.under_way(); under_way > 0) {
        owner.busy_.clear(std::memory_order_release);
        throw std::runtime_error(std::to_string(under_way) +
                                 " environments are under way: recv() their results, or reset() all");
      }
    }
    ~Use() { owner_.busy_.clear(std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    PoolBinding& owner_;
  };

  [[nodiscard]] std::vector<std::vector<double>> columns_of(const Description& d,
                                                            const std::map<std::string, py::array>& config) const;
  /// Calls without the interpreter's lock. A step that was given up becomes the exception of the signal.
  template <class Call>
  static void without_lock(Call&& call) {
    try {
      const Unlocked released;
      call();
    } catch (const Interrupted&) {
      throw py::error_already_set();
    }
  }

  AsyncBinding& require_async() {
    if (!async_) throw std::logic_error("nothing is under way: async_reset() first");
    return *async_;
  }

  [[nodiscard]] Shape batch(const std::vector<std::int64_t>& shape) const {
    Shape full(shape.begin(), shape.end());
    full.insert(full.begin(), size_);
    return full;
  }
  [[nodiscard]] const void* action_data(const py::object& actions, const Shape& shape) const;
  [[nodiscard]] void* observation_data(const py::array& array, const Shape& shape) const;
  [[nodiscard]] py::ssize_t report_width() const {
    return static_cast<py::ssize_t>(pool_->description().report_size());
  }
  [[nodiscard]] Shape column_shape(const Column& column) const {
    return column.width > 0 ? Shape{size_, static_cast<py::ssize_t>(column.width)} : Shape{size_};
  }
  [[nodiscard]] const void* column_data(const Column& column, const py::handle& array) const;

  const py::ssize_t size_;
  std::unique_ptr<AnyPool> pool_;
  Shape actions_, observations_, rewards_;
  bool is_discrete_ = false;
  py::dtype observation_dtype_;
  std::optional<StepInfos> step_infos_;
  InfoLevel info_level_ = InfoLevel::never;
  std::optional<ActionReader> action_reader_;
  std::optional<SlabRing> slabs_;
  std::vector<py::array> buffers_;  ///< keeps the open round's arrays alive
  BatchLayout layout_;
  std::optional<AsyncBinding> async_;  ///< after the pool, which its threads step
  std::atomic_flag busy_;
};

}  // namespace penstock
