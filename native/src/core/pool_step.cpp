/// PoolBinding: steps, rounds and asynchronous batches.
#include <algorithm>
#include <cstring>

#include "pool_binding.hpp"

namespace penstock {

py::tuple PoolBinding::step(const py::handle& actions) {
  const Use use(*this);
  const void* chosen = action_reader_->read(actions, size_);
  const Slab& slab = slabs_->take();
  StepBuffers out{.observation = slab.data(0),
                  .reward = reinterpret_cast<double*>(slab.data(1)),
                  .terminated = reinterpret_cast<bool*>(slab.data(2)),
                  .truncated = reinterpret_cast<bool*>(slab.data(3))};
  step_infos_->put(out);
  // Other threads of Python wait no longer for a step of microseconds than for the handing over of the lock.
  std::size_t ended = 0;
  if (pool_->is_brief()) ended = pool_->step(chosen, out);
  else without_lock([&] { ended = pool_->step(chosen, out); });
  const bool has_infos = info_level_ == InfoLevel::always || (info_level_ == InfoLevel::ends && ended > 0);
  py::tuple result(5);
  for (std::size_t part = 0; part < 4; ++part)
    PyTuple_SET_ITEM(result.ptr(), static_cast<py::ssize_t>(part), slab.array(part).inc_ref().ptr());
  PyTuple_SET_ITEM(result.ptr(), 4, has_infos ? py::none().release().ptr() : py::dict().release().ptr());
  return result;
}

py::tuple PoolBinding::step_rows(const py::handle& actions, const py::array& environments) {
  const Use use(*this);
  const py::ssize_t count = environments.size();
  const auto* chosen = readable_data<std::int32_t>(environments, {count}, "environments");
  std::vector<bool> taken(static_cast<std::size_t>(size_), false);
  for (py::ssize_t i = 0; i < count; ++i) {
    if (chosen[i] < 0 || chosen[i] >= size_ || taken[static_cast<std::size_t>(chosen[i])])
      throw py::value_error("environments are different numbers from 0 to num_envs - 1, got " +
                            std::to_string(chosen[i]) + (chosen[i] < 0 || chosen[i] >= size_ ? "" : " twice"));
    taken[static_cast<std::size_t>(chosen[i])] = true;
  }
  const auto rows_of = [count](Shape shape) {
    shape.front() = count;
    return shape;
  };
  const void* action = action_reader_->read(actions, count);
  pool_->check_rows(action, {chosen, static_cast<std::size_t>(count)});
  py::array observation(observation_dtype_, rows_of(observations_));
  py::array_t<double> reward(rows_of(rewards_)), report(Shape{count, report_width()}), returns(count);
  py::array_t<bool> terminated(count), truncated(count);
  py::array_t<std::int64_t> lengths(count);
  std::fill_n(returns.mutable_data(), count, 0.0);
  std::fill_n(lengths.mutable_data(), count, 0);
  StepBuffers out{.observation = observation.mutable_data(),
                  .reward = reward.mutable_data(),
                  .terminated = terminated.mutable_data(),
                  .truncated = truncated.mutable_data()};
  step_infos_->put(out);
  out.episode_return = returns.mutable_data();
  out.episode_length = lengths.mutable_data();
  out.report = report.mutable_data();
  std::exception_ptr first;
  without_lock([&] {
    const auto width = action_reader_->bytes() / std::max<std::size_t>(static_cast<std::size_t>(count), 1);
    for (std::size_t done = 0; done < static_cast<std::size_t>(count);) {
      std::exception_ptr error;
      done += pool_->step_rows(static_cast<const std::byte*>(action) + done * width,
                               std::span(chosen, static_cast<std::size_t>(count)).subspan(done), done, out, error);
      if (error == nullptr) continue;
      if (first == nullptr) first = error;
      ++done;
    }
  });
  if (first != nullptr) std::rethrow_exception(first);
  return py::make_tuple(observation, reward, terminated, truncated, report, returns, lengths);
}

py::tuple PoolBinding::ended(const py::array& rows) {
  const Use use(*this);
  return step_infos_->ended(rows);
}

void PoolBinding::set_batch(std::int64_t batch_size, bool deterministic) {
  const Use use(*this);
  if (batch_size < 1 || batch_size > size_ || (deterministic && size_ % batch_size != 0))
    throw py::value_error("batch_size is " + std::to_string(batch_size) + ", expected 1 to num_envs" +
                          (deterministic ? " and a divisor of it" : ""));
  layout_.settings.batch_size = static_cast<std::size_t>(batch_size);
  layout_.settings.deterministic = deterministic;
  layout_.observation = observations_;
  layout_.reward = rewards_;
  layout_.observation.front() = layout_.reward.front() = batch_size;
  async_.reset();
}

void PoolBinding::async_reset(const py::array& seeds, const py::array& seeded, const py::object& environments) {
  const Use use(*this, true);
  if (!async_) async_.emplace(*pool_, layout_);
  async_->reset(seeds, seeded, environments);
  buffers_.clear();  // a refused reset leaves a round open, which writes to them
}

void PoolBinding::drain() {
  const Use use(*this, true);
  if (!async_) return;
  const Unlocked released;
  async_->drain();
}

void PoolBinding::begin_round(const py::array& observation, const py::array& reward, const py::array& terminated,
                              const py::array& truncated, const py::array& episode_id) {
  const Use use(*this);
  if (observation.ndim() < 1 || observation.shape(0) < 1)
    throw py::value_error("observation: expected [T, B, ...] with at least one step");
  const py::ssize_t steps = observation.shape(0);
  Shape full = observations_;
  full.insert(full.begin(), steps);
  Shape rewards = rewards_;
  rewards.insert(rewards.begin(), steps);
  pool_->begin_round({.steps = steps,
                      .observation = observation_data(observation, full),
                      .reward = writable_data<float>(reward, rewards, "reward"),
                      .terminated = writable_data<std::uint8_t>(terminated, {steps, size_}, "terminated"),
                      .truncated = writable_data<std::uint8_t>(truncated, {steps, size_}, "truncated"),
                      .episode_id = writable_data<std::int32_t>(episode_id, {steps, size_}, "episode_id")});
  buffers_ = {observation, reward, terminated, truncated, episode_id};
}

void PoolBinding::step_round(std::int64_t t, const py::object& actions) {
  const Use use(*this);
  const void* chosen = action_data(actions, actions_);
  if (pool_->is_brief()) pool_->step_round(t, chosen);
  else without_lock([&] { pool_->step_round(t, chosen); });
}

py::tuple PoolBinding::end_round() {
  const Use use(*this);
  const RoundResult result = pool_->end_round();
  buffers_.clear();
  Shape shape = observations_;
  shape.front() = static_cast<py::ssize_t>(result.bootstrap_rows.size());
  py::array bootstrap(observation_dtype_, shape);
  std::copy(result.bootstrap_observation.begin(), result.bootstrap_observation.end(),
            static_cast<std::byte*>(bootstrap.mutable_data()));
  const auto& episodes = result.episodes;
  const auto column = [&]<class T>(T, auto member) {
    py::array_t<T> array(static_cast<py::ssize_t>(episodes.size()));
    std::transform(episodes.begin(), episodes.end(), array.mutable_data(),
                   [&](const Episode& episode) { return static_cast<T>(episode.*member); });
    return array;
  };
  py::dict columns;
  columns["row"] = column(std::int64_t{}, &Episode::row);
  columns["env"] = column(std::int64_t{}, &Episode::environment);
  columns["episode_id"] = column(std::int64_t{}, &Episode::episode_id);
  columns["length"] = column(std::int64_t{}, &Episode::length_steps);
  columns["return"] = column(double{}, &Episode::total_reward);
  columns["terminated"] = column(std::uint8_t{}, &Episode::terminated);
  columns["truncated"] = column(std::uint8_t{}, &Episode::truncated);
  return py::make_tuple(to_array(result.bootstrap_rows, {shape.front()}), bootstrap, columns);
}

}  // namespace penstock
