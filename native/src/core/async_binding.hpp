/// The asynchronous interface of a pool; the arrays of coming batches are allocated before they are needed.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "action_args.hpp"
#include "bindings.hpp"
#include "penstock/engine/async_pool.hpp"
#include "result_slabs.hpp"
#include "step_infos.hpp"

namespace penstock {

/// Layout of a batch, and the settings of its delivery.
struct BatchLayout {
  AsyncSettings settings = {};
  py::dtype observation_dtype;
  Shape observation = {}, reward = {};  ///< shapes of a batch
  bool statistics = false;
};

class AsyncBinding {
 public:
  AsyncBinding(AnyPool& pool, BatchLayout layout)
      : pool_(pool), layout_(std::move(layout)), batch_size_(static_cast<py::ssize_t>(layout_.settings.batch_size)),
        info_level_(info_level_of(pool.description(), layout_.settings.autoreset, layout_.statistics)),
        reader_(pool.description().action_count > 0, pool.description().action_shape), driver_(pool, layout_.settings),
        slabs_({{layout_.observation_dtype, layout_.observation},
                {py::dtype::of<double>(), layout_.reward},
                {py::dtype::of<bool>(), {batch_size_}},
                {py::dtype::of<bool>(), {batch_size_}},
                {py::dtype::of<std::int32_t>(), {batch_size_}}},
               driver_.batches() + 4) {
    for (std::size_t index = 0; index <= driver_.batches(); ++index)
      step_infos_.push_back(std::make_unique<StepInfos>(pool.description(), batch_size_, layout_.settings.autoreset,
                                             layout_.observation_dtype, layout_.observation));
    latest_ = std::move(step_infos_.back());
    step_infos_.pop_back();
    placed_.resize(driver_.batches());
    for (std::size_t index = 0; index < driver_.batches(); ++index) place(index);
  }

  [[nodiscard]] std::size_t under_way() const { return driver_.under_way(); }
  void drain() { driver_.drain(); }
  /// Joins the threads. Only destruction may follow.
  void stop() noexcept { driver_.stop(); }

  /// Starts episodes; `environments` None resets all of them and cancels what is pending.
  void reset(const py::array& seeds, const py::array& seeded, const py::object& environments) {
    std::vector<std::int32_t> all;
    std::span<const std::int32_t> chosen;
    if (environments.is_none()) {
      for (std::size_t env = 0; env < pool_.size(); ++env) all.push_back(static_cast<std::int32_t>(env));
      chosen = all;
    } else {
      chosen = ids(environments);
    }
    const auto count = static_cast<py::ssize_t>(chosen.size());
    const auto* seed = readable_data<std::uint64_t>(seeds, {count}, "seeds");
    const auto* with_seed = readable_data<bool>(seeded, {count}, "seeded");
    std::vector<const std::uint64_t*> given;
    for (py::ssize_t i = 0; i < count; ++i) given.push_back(with_seed[i] ? seed + i : nullptr);
    if (environments.is_none()) {
      const Unlocked released;
      driver_.drain();
    }
    driver_.reset(chosen, given);
  }

  /// Sends actions; `environments` None means those of the latest batch.
  void send(const py::handle& actions, const py::object& environments) {
    if (environments.is_none() && !received_)
      throw std::logic_error("send() does not know for which environments: nothing was received yet, give env_ids");
    const auto chosen = ids(environments.is_none() ? received_ : environments);
    driver_.send(reader_.read(actions, static_cast<py::ssize_t>(chosen.size())), chosen);
  }

  /// Returns observation, reward, terminated, truncated, env_id, and whether `infos` has content.
  py::tuple recv() {
    std::size_t index = 0;
    try {
      const Unlocked released;
      index = driver_.receive();
    } catch (const Interrupted&) {
      throw py::error_already_set();
    }
    Slab slab = std::move(placed_[index]);
    std::swap(latest_, step_infos_[index]);
    place(index);
    received_ = slab.array(4);
    const auto* flags = reinterpret_cast<const bool*>(slab.data(2));
    const auto* more_flags = reinterpret_cast<const bool*>(slab.data(3));
    const auto ended = [](bool one) { return one; };
    const bool has_infos = info_level_ == InfoLevel::always || (info_level_ == InfoLevel::ends &&
                                                   (std::any_of(flags, flags + batch_size_, ended) ||
                                                    std::any_of(more_flags, more_flags + batch_size_, ended)));
    return py::make_tuple(slab.array(0), slab.array(1), slab.array(2), slab.array(3), slab.array(4), has_infos);
  }

  [[nodiscard]] const StepInfos& step_infos() const { return *latest_; }

 private:
  void place(std::size_t index) {
    placed_[index] = slabs_.take();
    const Slab& slab = placed_[index];
    StepBuffers out{.observation = slab.data(0),
                    .reward = reinterpret_cast<double*>(slab.data(1)),
                    .terminated = reinterpret_cast<bool*>(slab.data(2)),
                    .truncated = reinterpret_cast<bool*>(slab.data(3))};
    step_infos_[index]->put(out);
    driver_.place(index, out, reinterpret_cast<std::int32_t*>(slab.data(4)));
  }

  /// Valid until the next call, for as long as the caller keeps the object.
  std::span<const std::int32_t> ids(const py::object& object) {
    ids_ = py::array_t<std::int32_t, py::array::c_style>::ensure(checked_ids(object));
    if (!ids_) throw py::error_already_set();
    return {ids_.data(), static_cast<std::size_t>(ids_.size())};
  }
  py::array checked_ids(const py::object& object) const {
    const auto array = py::array::ensure(object);
    if (!array) throw py::error_already_set();
    const char kind = array.dtype().kind();
    if (array.ndim() != 1 || (kind != 'i' && kind != 'u'))
      throw py::value_error("env_ids: expected integers [rows], got " + py::str(array.dtype()).cast<std::string>() +
                            " of " + to_text(array.shape(), static_cast<std::size_t>(array.ndim())));
    if (array.size() < 1) throw py::value_error("env_ids: expected at least one environment");
    if (kind == 'i' && array.itemsize() <= 4) return array;
    const py::array_t<std::int64_t, py::array::forcecast> wide(array);
    for (py::ssize_t i = 0; i < wide.size(); ++i)
      if (wide.at(i) < 0 || static_cast<std::size_t>(wide.at(i)) >= pool_.size())
        throw py::value_error("env_ids: " + std::to_string(wide.at(i)) + " is not one of 0 to " +
                              std::to_string(pool_.size() - 1));
    return py::array_t<std::int32_t, py::array::forcecast>(wide);
  }

  AnyPool& pool_;
  const BatchLayout layout_;
  const py::ssize_t batch_size_;
  const InfoLevel info_level_;
  ActionReader reader_;
  std::vector<Slab> placed_;                 ///< this and step_infos_: before the driver, whose threads write to them
  std::vector<std::unique_ptr<StepInfos>> step_infos_;  ///< one a placed batch
  std::unique_ptr<StepInfos> latest_;             ///< extras of the batch received last
  AsyncPool driver_;
  SlabRing slabs_;
  py::object received_;  ///< env_id of the batch received last
  py::array_t<std::int32_t> ids_;
};

}  // namespace penstock
