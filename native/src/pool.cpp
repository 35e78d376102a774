/// Binds a pool. Sizes and types are checked here with the interpreter lock held; stepping runs without it.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>

#include "action_reader.hpp"
#include "async_binding.hpp"
#include "bindings.hpp"
#include "slabs.hpp"
#include "told.hpp"

namespace penstock {
namespace {

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
    told_.emplace(d, size_, settings.autoreset, observation_dtype_, observations_);
    tells_ = tells_of(d, settings.autoreset, statistics);
    face_ = {.settings = {.num_threads = settings.num_threads,
                          .thread_affinity = thread_affinity,
                          .autoreset = settings.autoreset,
                          .interrupted = &interrupted},
             .observation_dtype = observation_dtype_,
             .statistics = statistics};
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
    const bool all = mask.size() == size_ && py::cast<bool>(mask.attr("all")());
    const Use use(*this, all);
    const auto* seed = readable_data<std::uint64_t>(seeds, {size_}, "seeds");
    const auto* with_seed = readable_data<bool>(seeded, {size_}, "seeded");
    const auto* chosen = readable_data<bool>(mask, {size_}, "mask");
    if (under_way() > 0) {
      const py::gil_scoped_release released;
      async_->drain();
    }
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
    StepBuffers out{.observation = slab.data(0),
                    .reward = reinterpret_cast<double*>(slab.data(1)),
                    .terminated = reinterpret_cast<bool*>(slab.data(2)),
                    .truncated = reinterpret_cast<bool*>(slab.data(3))};
    told_->put(out);
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
    StepBuffers out{.observation = observation.mutable_data(),
                    .reward = reward.mutable_data(),
                    .terminated = terminated.mutable_data(),
                    .truncated = truncated.mutable_data()};
    told_->put(out);
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

  /// What the latest step left beside its arrays, as Told has it.
  py::tuple ended(const py::array& rows) {
    const Use use(*this);
    return told_->ended(rows);
  }

  // The asynchronous face

  /// From here on batches have `batch_size` rows.
  void set_batch(std::int64_t batch_size, bool deterministic) {
    const Use use(*this);
    if (batch_size < 1 || batch_size > size_ || (deterministic && size_ % batch_size != 0))
      throw py::value_error("batch_size is " + std::to_string(batch_size) + ", expected 1 to num_envs" +
                            (deterministic ? " and a divisor of it" : ""));
    face_.settings.batch_size = static_cast<std::size_t>(batch_size);
    face_.settings.deterministic = deterministic;
    face_.observation = observations_;
    face_.reward = rewards_;
    face_.observation.front() = face_.reward.front() = batch_size;
    async_.reset();
  }
  void async_reset(const py::array& seeds, const py::array& seeded, const py::object& environments) {
    const Use use(*this, true);
    buffers_.clear();
    if (!async_) async_.emplace(*pool_, face_);
    async_->reset(seeds, seeded, environments);
  }
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
    return require_async().told().ended(rows);
  }
  py::array received_report() {
    const Use use(*this, true);
    return require_async().told().report();
  }
  [[nodiscard]] std::size_t under_way() const { return async_ ? async_->under_way() : 0; }
  /// Gives up what is under way: its environments stand anywhere, and must be reset or restored.
  void drain() {
    const Use use(*this, true);
    if (!async_) return;
    const py::gil_scoped_release released;
    async_->drain();
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
    const Use use(*this, true);
    buffers_.clear();
    {
      const py::gil_scoped_release released;  // threads finish what they have in hand
      if (async_) async_->stop();
    }
    async_.reset();
    pool_.reset();
  }

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

  AsyncBinding& require_async() {
    if (!async_) throw std::logic_error("nothing is under way: async_reset() first");
    return *async_;
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
    return static_cast<py::ssize_t>(pool_->description().reports.size());
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
  std::optional<Told> told_;
  Tells tells_ = Tells::never;
  std::optional<ActionReader> action_reader_;
  std::optional<SlabRing> slabs_;
  std::vector<py::array> buffers_;  ///< keeps the open round's arrays alive
  AsyncFace face_;
  std::optional<AsyncBinding> async_;  ///< after the pool, which its threads step
  std::atomic_flag busy_;
};

}  // namespace

void bind_pool(py::module_& module) {
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
      .def("set_batch", &PoolBinding::set_batch, py::arg("batch_size"), py::arg("deterministic"))
      .def("async_reset", &PoolBinding::async_reset, py::arg("seeds"), py::arg("seeded"), py::arg("environments"))
      .def("send", &PoolBinding::send, py::arg("actions"), py::arg("environments"))
      .def("recv", &PoolBinding::recv)
      .def("received_ended", &PoolBinding::received_ended, py::arg("rows"))
      .def_property_readonly("received_report", &PoolBinding::received_report)
      .def_property_readonly("under_way", &PoolBinding::under_way)
      .def("drain", &PoolBinding::drain)
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
