/// Binds a pool. Sizes and types are checked here with the interpreter lock held; stepping runs without it.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>

#include "action_reader.hpp"
#include "bindings.hpp"
#include "slabs.hpp"

namespace penstock {
namespace {

template <class T>
py::array_t<T> to_array(const std::vector<T>& values, const std::vector<std::int64_t>& shape) {
  py::array_t<T> array(Shape(shape.begin(), shape.end()));
  std::copy(values.begin(), values.end(), array.mutable_data());
  return array;
}

py::dtype dtype_of(ValueType type) {
  switch (type) {
    case ValueType::float32: return py::dtype::of<float>();
    case ValueType::float64: return py::dtype::of<double>();
    case ValueType::uint8: return py::dtype::of<std::uint8_t>();
  }
  throw std::logic_error("unknown value type");
}

py::dict describe_entry(const std::string& id) {
  const Description& d = registered(id).entry.description;
  py::dict config;
  for (const FieldInfo& field : d.config) {
    if (field.kind == FieldKind::boolean) config[field.name.c_str()] = field.preset != 0.0;
    else if (field.kind == FieldKind::integer) config[field.name.c_str()] = static_cast<std::int64_t>(field.preset);
    else config[field.name.c_str()] = field.preset;
  }
  py::dict out;
  const bool is_box = d.action_count == 0;
  out["id"] = d.id;
  out["max_episode_steps"] = d.max_episode_steps > 0 ? py::object(py::int_(d.max_episode_steps)) : py::none();
  out["reward_threshold"] = d.reward_threshold;
  out["observation_dtype"] = dtype_of(d.observation_type);
  out["observation_low"] = to_array(d.observation_low, d.observation_shape);
  out["observation_high"] = to_array(d.observation_high, d.observation_shape);
  out["action_count"] = d.action_count;
  out["action_shape"] = py::tuple(py::cast(d.action_shape));
  out["action_low"] = to_array(d.action_low, is_box ? d.action_shape : std::vector<std::int64_t>{0});
  out["action_high"] = to_array(d.action_high, is_box ? d.action_shape : std::vector<std::int64_t>{0});
  out["agents"] = d.agents;
  out["config"] = config;
  out["reports"] = py::tuple(py::cast(d.reports));
  out["reset_reports"] = d.reset_reports;
  return out;
}

Autoreset autoreset_of(const std::string& name) {
  if (name == "NextStep") return Autoreset::next_step;
  if (name == "SameStep") return Autoreset::same_step;
  if (name == "Disabled") return Autoreset::disabled;
  throw py::value_error("autoreset is '" + name + "', expected NextStep, SameStep or Disabled");
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

/// Whether Python has a signal to raise, Ctrl-C mostly: then its exception is set.
bool interrupted() {
  const py::gil_scoped_acquire acquired;
  return PyErr_CheckSignals() != 0;
}

class PoolBinding {
 public:
  PoolBinding(const std::string& id, std::int64_t num_envs, int num_threads, std::int64_t max_episode_steps,
              const std::string& autoreset, const std::map<std::string, py::array>& config, bool statistics,
              bool thread_affinity)
      : size_(num_envs) {
    const Registered& found_entry = registered(id);
    const Description& d = found_entry.entry.description;
    if (num_envs < 1) throw py::value_error("num_envs is " + std::to_string(num_envs) + ", expected at least 1");
    if (num_threads < 1)
      throw py::value_error("num_threads is " + std::to_string(num_threads) + ", expected at least 1");
    if (max_episode_steps < 0) throw py::value_error("max_episode_steps is negative");
    PoolSettings settings{.size = static_cast<std::size_t>(num_envs),
                          .num_threads = static_cast<int>(std::min<std::int64_t>(num_threads, num_envs)),
                          .max_episode_steps = max_episode_steps,
                          .autoreset = autoreset_of(autoreset),
                          .config = columns_of(d, config),
                          .resources = found_entry.resources,
                          .thread_affinity = thread_affinity,
                          .interrupted = &interrupted};
    actions_ = batch(d.action_shape);
    observations_ = batch(d.observation_shape);
    rewards_ = d.agents > 0 ? Shape{size_, static_cast<py::ssize_t>(d.agents)} : Shape{size_};
    is_discrete_ = d.action_count > 0;
    observation_dtype_ = dtype_of(d.observation_type);
    pool_ = found_entry.entry.make(settings);
    const auto rows = static_cast<std::size_t>(size_);
    fresh_ = std::make_unique<bool[]>(rows);
    episode_return_.resize(rows);
    episode_length_.resize(rows);
    report_.resize(rows * d.reports.size());
    final_report_.resize(report_.size());
    if (settings.autoreset == Autoreset::same_step) final_observation_.resize(rows * row_bytes());
    tells_ = !d.reports.empty()                                          ? Tells::always
        : statistics || settings.autoreset == Autoreset::same_step ? Tells::ends
                                                                         : Tells::never;
    action_reader_.emplace(is_discrete_, d.action_shape);
    slabs_.emplace(std::vector<SlabPart>{{observation_dtype_, observations_},
                                         {py::dtype::of<double>(), rewards_},
                                         {py::dtype::of<bool>(), {size_}},
                                         {py::dtype::of<bool>(), {size_}}});
  }

  /// The fields that are not given get their presets, as in the constructor.
  void configure(const std::map<std::string, py::array>& config) {
    const Use use(*this);
    pool_->configure(columns_of(pool_->description(), config));
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
    py::array out(observation_dtype_, observations_);
    pool_->observe(out.mutable_data());
    return out;
  }

  /// [num_envs, reports]: of the observation's moment.
  py::array report() {
    const Use use(*this);
    py::array_t<double> out(Shape{size_, report_width()});
    pool_->report(out.mutable_data());
    return out;
  }

  /// Observation, reward, terminated, truncated, and infos: an empty dict where there is nothing to tell, or None where
  /// they must be asked for.
  py::tuple step(const py::handle& actions) {
    const Use use(*this);
    const void* chosen = action_reader_->read(actions, size_);
    const Slab& slab = slabs_->take();
    const StepBuffers out{.observation = slab.data(0),
                          .reward = reinterpret_cast<double*>(slab.data(1)),
                          .terminated = reinterpret_cast<bool*>(slab.data(2)),
                          .truncated = reinterpret_cast<bool*>(slab.data(3)),
                          .fresh = fresh_.get(),
                          .episode_return = episode_return_.data(),
                          .episode_length = episode_length_.data(),
                          .final_observation = final_observation_.data(),
                          .report = report_.data(),
                          .final_report = final_report_.data()};
    // Other threads of Python wait no longer for a step of microseconds than for the handing over of the lock.
    std::size_t ended = 0;
    if (pool_->is_brief()) ended = pool_->step(chosen, out);
    else without_lock([&] { ended = pool_->step(chosen, out); });
    const bool tells = tells_ == Tells::always || (tells_ == Tells::ends && ended > 0);
    py::tuple result(5);
    for (std::size_t part = 0; part < 4; ++part)
      PyTuple_SET_ITEM(result.ptr(), static_cast<py::ssize_t>(part), slab.array(part).inc_ref().ptr());
    PyTuple_SET_ITEM(result.ptr(), 4, tells ? py::none().release().ptr() : py::dict().release().ptr());
    return result;
  }

  /// Steps these environments alone, in the calling thread: observation, reward, terminated, truncated, report, return
  /// and length of the episode (both meaningful where one ended), a row each in the given order.
  py::tuple step_rows(const py::handle& actions, const py::array& environments) {
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
    const StepBuffers out{.observation = observation.mutable_data(),
                          .reward = reward.mutable_data(),
                          .terminated = terminated.mutable_data(),
                          .truncated = truncated.mutable_data(),
                          .fresh = fresh_.get(),
                          .episode_return = returns.mutable_data(),
                          .episode_length = lengths.mutable_data(),
                          .final_observation = final_observation_.data(),
                          .report = report.mutable_data(),
                          .final_report = final_report_.data()};
    std::exception_ptr error;
    without_lock([&] { error = pool_->step_rows(action, chosen, 0, static_cast<std::size_t>(count), out); });
    if (error) std::rethrow_exception(error);
    return py::make_tuple(observation, reward, terminated, truncated, report, returns, lengths);
  }

  /// What the latest step left beside its arrays: which rows' observation is a reset's, then for the environments
  /// `rows` whose episode ended: its return and length, and with SAME_STEP its last observation and report.
  py::tuple ended(const py::array& rows) {
    const Use use(*this);
    const py::ssize_t count = rows.size();
    const auto* row = readable_data<std::int64_t>(rows, {count}, "rows");
    if (std::any_of(row, row + count, [&](std::int64_t r) { return r < 0 || r >= size_; }))
      throw py::value_error("rows are 0 to num_envs - 1");
    Shape seen = observations_;
    const bool with_final = !final_observation_.empty();
    seen.front() = with_final ? count : 0;
    py::array final_observation(observation_dtype_, seen);
    py::array_t<double> returns(count), reports(Shape{with_final ? count : 0, report_width()});
    py::array_t<std::int64_t> lengths(count);
    for (py::ssize_t i = 0; i < count; ++i) {
      returns.mutable_data()[i] = episode_return_[static_cast<std::size_t>(row[i])];
      lengths.mutable_data()[i] = episode_length_[static_cast<std::size_t>(row[i])];
      if (!with_final) continue;
      const auto from = static_cast<std::size_t>(row[i]), to = static_cast<std::size_t>(i);
      const auto width = static_cast<std::size_t>(report_width());
      std::memcpy(static_cast<std::byte*>(final_observation.mutable_data()) + to * row_bytes(),
                  final_observation_.data() + from * row_bytes(), row_bytes());
      std::copy_n(final_report_.data() + from * width, width, reports.mutable_data() + to * width);
    }
    py::array_t<bool> fresh(size_);
    std::copy_n(fresh_.get(), size_, fresh.mutable_data());
    return py::make_tuple(fresh, returns, lengths, final_observation, reports);
  }

  void begin_round(const py::array& observation, const py::array& reward, const py::array& terminated,
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

  void step_round(std::int64_t t, const py::object& actions) {
    const Use use(*this);
    const void* chosen = action_data(actions, actions_);
    without_lock([&] { pool_->step_round(t, chosen); });
  }

  py::tuple end_round() {
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

  /// The names of the saved state's arrays.
  py::tuple columns() {
    const Use use(*this);
    const std::vector<Column> columns = pool_->columns();
    py::tuple names(columns.size());
    for (std::size_t i = 0; i < columns.size(); ++i) names[i] = columns[i].name;
    return names;
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

  [[nodiscard]] std::vector<std::vector<double>> columns_of(const Description& d,
                                                            const std::map<std::string, py::array>& config) const {
    std::vector<std::vector<double>> columns;
    for (const FieldInfo& field : d.config) {
      const auto found = config.find(field.name);
      columns.emplace_back(static_cast<std::size_t>(size_), field.preset);
      if (found == config.end()) continue;
      const double* given = readable_data<double>(found->second, {size_}, field.name.c_str());
      columns.back().assign(given, given + size_);
    }
    return columns;
  }
  /// Calls without the interpreter's lock. A step that was given up becomes the exception of the signal.
  template <class Call>
  static void without_lock(Call&& call) {
    try {
      const py::gil_scoped_release released;
      call();
    } catch (const Interrupted&) {
      throw py::error_already_set();
    }
  }

  [[nodiscard]] Shape batch(const std::vector<std::int64_t>& shape) const {
    Shape full(shape.begin(), shape.end());
    full.insert(full.begin(), size_);
    return full;
  }
  [[nodiscard]] const void* action_data(const py::object& actions, const Shape& shape) const {
    if (is_discrete_) return readable_data<std::int64_t>(actions, shape, "actions");
    return readable_data<float>(actions, shape, "actions");
  }
  [[nodiscard]] void* observation_data(const py::array& array, const Shape& shape) const {
    switch (pool_->description().observation_type) {
      case ValueType::float32: return writable_data<float>(array, shape, "observation");
      case ValueType::float64: return writable_data<double>(array, shape, "observation");
      case ValueType::uint8: return writable_data<std::uint8_t>(array, shape, "observation");
    }
    throw std::logic_error("unknown value type");
  }
  [[nodiscard]] py::ssize_t report_width() const {
    return static_cast<py::ssize_t>(report_.size()) / size_;
  }
  [[nodiscard]] std::size_t row_bytes() const {
    std::size_t bytes = static_cast<std::size_t>(observation_dtype_.itemsize());
    for (std::size_t i = 1; i < observations_.size(); ++i) bytes *= static_cast<std::size_t>(observations_[i]);
    return bytes;
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
  Shape actions_, observations_, rewards_;
  bool is_discrete_ = false;
  py::dtype observation_dtype_;
  // What a step leaves that a caller seldom asks for.
  std::unique_ptr<bool[]> fresh_;
  std::vector<double> episode_return_, report_, final_report_;
  std::vector<std::int64_t> episode_length_;
  std::vector<std::byte> final_observation_;
  enum class Tells { never, ends, always } tells_ = Tells::never;  ///< when a step leaves something for infos
  std::optional<ActionReader> action_reader_;
  std::optional<SlabRing> slabs_;
  std::vector<py::array> buffers_;  ///< keeps the open round's arrays alive
  std::atomic_flag busy_;
};

}  // namespace

void bind_pool(py::module_& module) {
  module.def("describe", &describe_entry, py::arg("id"));
  py::class_<PoolBinding>(module, "Pool")
      .def(py::init<const std::string&, std::int64_t, int, std::int64_t, const std::string&,
                    const std::map<std::string, py::array>&, bool, bool>(),
           py::arg("id"), py::arg("num_envs"), py::arg("num_threads"), py::arg("max_episode_steps"),
           py::arg("autoreset"), py::arg("config"), py::kw_only(), py::arg("statistics") = false,
           py::arg("thread_affinity") = false)
      .def_property_readonly("num_envs", &PoolBinding::size)
      .def_property_readonly("observation", &PoolBinding::observation)
      .def("configure", &PoolBinding::configure, py::arg("config"))
      .def("reset", &PoolBinding::reset, py::arg("seeds"), py::arg("seeded"), py::arg("mask"))
      .def_property_readonly("report", &PoolBinding::report)
      .def("step", &PoolBinding::step, py::arg("actions"))
      .def("step_rows", &PoolBinding::step_rows, py::arg("actions"), py::arg("environments"))
      .def("ended", &PoolBinding::ended, py::arg("rows"))
      .def("begin_round", &PoolBinding::begin_round, py::arg("observation"), py::arg("reward"), py::arg("terminated"),
           py::arg("truncated"), py::arg("episode_id"))
      .def("step_round", &PoolBinding::step_round, py::arg("t"), py::arg("actions"))
      .def("end_round", &PoolBinding::end_round)
      .def_property_readonly("columns", &PoolBinding::columns)
      .def("save", &PoolBinding::save)
      .def("restore", &PoolBinding::restore, py::arg("state"))
      .def("close", &PoolBinding::close);
}

}  // namespace penstock
