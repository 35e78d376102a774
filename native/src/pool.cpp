/// Binds a pool. Sizes and types are checked here with the interpreter lock held; stepping runs without it.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>

#include "bindings.hpp"

namespace penstock {
namespace {

const CatalogEntry& entry_of(const std::string& id) {
  std::string known;
  for (const CatalogEntry& entry : catalog()) {
    if (entry.description.id == id) return entry;
    known += (known.empty() ? "" : ", ") + entry.description.id;
  }
  throw py::value_error("no environment is called '" + id + "'; there are: " + known);
}

template <class T>
py::array_t<T> to_array(const std::vector<T>& values, const std::vector<std::int64_t>& shape) {
  py::array_t<T> array(Shape(shape.begin(), shape.end()));
  std::copy(values.begin(), values.end(), array.mutable_data());
  return array;
}

py::dict describe_entry(const std::string& id) {
  const Description& d = entry_of(id).description;
  py::dict config;
  for (const FieldInfo& field : d.config) {
    if (field.kind == FieldKind::boolean) config[field.name.c_str()] = field.preset != 0.0;
    else if (field.kind == FieldKind::integer) config[field.name.c_str()] = static_cast<std::int64_t>(field.preset);
    else config[field.name.c_str()] = field.preset;
  }
  py::dict out;
  out["id"] = d.id;
  out["max_episode_steps"] = d.max_episode_steps > 0 ? py::object(py::int_(d.max_episode_steps)) : py::none();
  out["reward_threshold"] = d.reward_threshold;
  out["observation_low"] = to_array(d.observation_low, d.observation_shape);
  out["observation_high"] = to_array(d.observation_high, d.observation_shape);
  out["action_count"] = d.action_count;
  out["action_low"] = to_array(d.action_low, d.action_count > 0 ? std::vector<std::int64_t>{0} : d.action_shape);
  out["action_high"] = to_array(d.action_high, d.action_count > 0 ? std::vector<std::int64_t>{0} : d.action_shape);
  out["config"] = config;
  return out;
}

py::dtype dtype_of(Column::Type type) {
  switch (type) {
    case Column::Type::real: return py::dtype::of<double>();
    case Column::Type::integer: return py::dtype::of<std::int64_t>();
    case Column::Type::word: return py::dtype::of<std::uint64_t>();
    case Column::Type::boolean: return py::dtype::of<bool>();
  }
  throw std::logic_error("unknown column type");
}

class PoolBinding {
 public:
  PoolBinding(const std::string& id, std::int64_t num_envs, int num_threads, std::int64_t max_episode_steps,
              const std::map<std::string, py::array>& config)
      : size_(num_envs) {
    const CatalogEntry& entry = entry_of(id);
    if (num_envs < 1) throw py::value_error("num_envs is " + std::to_string(num_envs) + ", expected at least 1");
    if (num_threads < 1)
      throw py::value_error("num_threads is " + std::to_string(num_threads) + ", expected at least 1");
    if (max_episode_steps < 0) throw py::value_error("max_episode_steps is negative");
    std::vector<std::vector<double>> values;
    for (const FieldInfo& field : entry.description.config) {
      const auto found = config.find(field.name);
      values.emplace_back(static_cast<std::size_t>(num_envs), field.preset);
      if (found == config.end()) continue;
      const double* given = readable_data<double>(found->second, {size_}, field.name.c_str());
      values.back().assign(given, given + num_envs);
    }
    const auto threads = static_cast<int>(std::min<std::int64_t>(num_threads, num_envs));
    pool_ = entry.make(static_cast<std::size_t>(num_envs), threads, max_episode_steps, values);
    const Description& d = pool_->description();
    actions_ = d.action_count > 0 ? Shape{size_} : batch(d.action_shape);
    observations_ = batch(d.observation_shape);
  }

  void reset(const py::array& seeds, const py::array& seeded, const py::array& mask) {
    const Use use(*this);
    const auto* seed = readable_data<std::uint64_t>(seeds, {size_}, "seeds");
    const auto* with_seed = readable_data<bool>(seeded, {size_}, "seeded");
    const auto* chosen = readable_data<bool>(mask, {size_}, "mask");
    for (py::ssize_t i = 0; i < size_; ++i)
      if (chosen[i]) pool_->reset(static_cast<std::size_t>(i), with_seed[i] ? seed + i : nullptr);
    // A reset gives the round up, so nothing is written any more; without one the buffers are still in use.
    if (std::any_of(chosen, chosen + size_, [](bool one) { return one; })) buffers_.clear();
  }

  py::array observation() {
    const Use use(*this);
    py::array_t<float> out(observations_);
    pool_->observe(out.mutable_data());
    return out;
  }

  py::tuple step(const py::object& actions) {
    const Use use(*this);
    const void* chosen = action_data(actions);
    py::array_t<float> observation(observations_), final_observation(observations_);
    py::array_t<double> reward(size_);
    py::array_t<bool> terminated(size_), truncated(size_);
    const StepBuffers out{observation.mutable_data(), reward.mutable_data(), terminated.mutable_data(),
                          truncated.mutable_data(), final_observation.mutable_data()};
    {
      const py::gil_scoped_release released;
      pool_->step(chosen, out);
    }
    return py::make_tuple(observation, reward, terminated, truncated, final_observation);
  }

  void begin_round(const py::array& observation, const py::array& reward, const py::array& terminated,
                   const py::array& truncated, const py::array& episode_id) {
    const Use use(*this);
    if (observation.ndim() < 1 || observation.shape(0) < 1)
      throw py::value_error("observation: expected [T, B, ...] with at least one step");
    const py::ssize_t steps = observation.shape(0);
    Shape full = observations_;
    full.insert(full.begin(), steps);
    pool_->begin_round({.steps = steps,
                        .observation = writable_data<float>(observation, full, "observation"),
                        .reward = writable_data<float>(reward, {steps, size_}, "reward"),
                        .terminated = writable_data<std::uint8_t>(terminated, {steps, size_}, "terminated"),
                        .truncated = writable_data<std::uint8_t>(truncated, {steps, size_}, "truncated"),
                        .episode_id = writable_data<std::int32_t>(episode_id, {steps, size_}, "episode_id")});
    buffers_ = {observation, reward, terminated, truncated, episode_id};
  }

  void step_round(std::int64_t t, const py::object& actions) {
    const Use use(*this);
    const void* chosen = action_data(actions);
    const py::gil_scoped_release released;
    pool_->step_round(t, chosen);
  }

  py::tuple end_round() {
    const Use use(*this);
    const RoundResult result = pool_->end_round();
    buffers_.clear();
    std::vector<std::int64_t> shape = pool_->description().observation_shape;
    shape.insert(shape.begin(), static_cast<std::int64_t>(result.bootstrap_rows.size()));
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
    return py::make_tuple(to_array(result.bootstrap_rows, {shape.front()}),
                          to_array(result.bootstrap_observation, shape), columns);
  }

  py::dict save() {
    const Use use(*this);
    py::dict out;
    std::vector<void*> data;
    for (const Column& column : pool_->columns()) {
      py::array array(dtype_of(column.type), column_shape(column));
      data.push_back(array.mutable_data());
      out[column.name.c_str()] = array;
    }
    pool_->save(data);
    return out;
  }

  void restore(const std::map<std::string, py::object>& saved) {
    const Use use(*this);
    std::vector<const void*> data;
    std::string expected;
    for (const Column& column : pool_->columns()) {
      expected += (expected.empty() ? "" : ", ") + column.name;
      const auto found = saved.find(column.name);
      if (found == saved.end()) throw py::value_error("the state lacks '" + column.name + "'");
      data.push_back(column_data(column, found->second));
    }
    if (saved.size() != data.size())
      throw py::value_error("the state has " + std::to_string(saved.size()) + " arrays, expected exactly: " + expected);
    pool_->restore(data);
    buffers_.clear();
  }

  void close() {
    if (!pool_) return;
    const Use use(*this);
    buffers_.clear();
    pool_.reset();
  }

  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  /// One call at a time: stepping runs without the interpreter lock, so another thread could get in between.
  class Use {
   public:
    explicit Use(PoolBinding& owner) : owner_(owner) {
      if (owner.busy_.test_and_set(std::memory_order_acquire))
        throw std::runtime_error("this pool is being used by another thread: a pool is for one thread at a time");
      if (!owner.pool_) {
        owner.busy_.clear(std::memory_order_release);
        throw std::runtime_error("this pool is closed: make a new one");
      }
    }
    ~Use() { owner_.busy_.clear(std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    PoolBinding& owner_;
  };

  [[nodiscard]] Shape batch(const std::vector<std::int64_t>& shape) const {
    Shape full(shape.begin(), shape.end());
    full.insert(full.begin(), size_);
    return full;
  }
  [[nodiscard]] const void* action_data(const py::object& actions) const {
    if (pool_->description().action_count > 0) return readable_data<std::int64_t>(actions, actions_, "actions");
    return readable_data<float>(actions, actions_, "actions");
  }
  [[nodiscard]] Shape column_shape(const Column& column) const {
    return column.width > 0 ? Shape{size_, static_cast<py::ssize_t>(column.width)} : Shape{size_};
  }
  [[nodiscard]] const void* column_data(const Column& column, const py::handle& array) const {
    const Shape shape = column_shape(column);
    const char* name = column.name.c_str();
    switch (column.type) {
      case Column::Type::real: return readable_data<double>(array, shape, name);
      case Column::Type::integer: return readable_data<std::int64_t>(array, shape, name);
      case Column::Type::word: return readable_data<std::uint64_t>(array, shape, name);
      case Column::Type::boolean: return readable_data<bool>(array, shape, name);
    }
    throw std::logic_error("unknown column type");
  }

  const py::ssize_t size_;
  std::unique_ptr<AnyPool> pool_;
  Shape actions_, observations_;
  std::vector<py::array> buffers_;  ///< keeps the open round's arrays alive
  std::atomic_flag busy_;
};

}  // namespace

void bind_pool(py::module_& module) {
  module.def("environment_ids", [] {
    py::tuple ids(catalog().size());
    for (std::size_t i = 0; i < catalog().size(); ++i) ids[i] = catalog()[i].description.id;
    return ids;
  });
  module.def("describe", &describe_entry, py::arg("id"));
  py::class_<PoolBinding>(module, "Pool")
      .def(py::init<const std::string&, std::int64_t, int, std::int64_t, const std::map<std::string, py::array>&>(),
           py::arg("id"), py::arg("num_envs"), py::arg("num_threads"), py::arg("max_episode_steps"), py::arg("config"))
      .def_property_readonly("num_envs", &PoolBinding::size)
      .def_property_readonly("observation", &PoolBinding::observation)
      .def("reset", &PoolBinding::reset, py::arg("seeds"), py::arg("seeded"), py::arg("mask"))
      .def("step", &PoolBinding::step, py::arg("actions"))
      .def("begin_round", &PoolBinding::begin_round, py::arg("observation"), py::arg("reward"), py::arg("terminated"),
           py::arg("truncated"), py::arg("episode_id"))
      .def("step_round", &PoolBinding::step_round, py::arg("t"), py::arg("actions"))
      .def("end_round", &PoolBinding::end_round)
      .def("save", &PoolBinding::save)
      .def("restore", &PoolBinding::restore, py::arg("state"))
      .def("close", &PoolBinding::close);
}

}  // namespace penstock
