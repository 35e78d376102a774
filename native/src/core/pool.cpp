/// PoolBinding: construction, configuration, resets and saved states; and what Python sees of the class.
#include <algorithm>

#include "pool_binding.hpp"

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

/// Returns whether Python has a pending signal, such as Ctrl-C; its exception is then set.
bool interrupted() {
  const Locked acquired;
  return PyErr_CheckSignals() != 0;
}

}  // namespace

PoolBinding::PoolBinding(const std::string& id, std::int64_t num_envs, int num_threads, std::int64_t max_episode_steps,
                         const std::string& autoreset, const std::map<std::string, py::array>& config, bool statistics,
                         bool thread_affinity, const std::optional<std::string>& resources)
    : size_(num_envs) {
  const Registered& found_entry = registered(id);
  Description d = found_entry.entry.description;
  if (resources && found_entry.entry.complete != nullptr) found_entry.entry.complete(d, *resources);
  if (num_envs < 1) throw py::value_error("num_envs is " + std::to_string(num_envs) + ", expected at least 1");
  if (num_threads < 1)
    throw py::value_error("num_threads is " + std::to_string(num_threads) + ", expected at least 1");
  if (max_episode_steps < 0) throw py::value_error("max_episode_steps is negative");
  PoolSettings settings{.id = d.id,
                        .variant = found_entry.entry.variant,
                        .size = static_cast<std::size_t>(num_envs),
                        .num_threads = static_cast<int>(std::min<std::int64_t>(num_threads, num_envs)),
                        .max_episode_steps = max_episode_steps,
                        .autoreset = autoreset_of(autoreset),
                        .config = columns_of(d, config),
                        .resources = resources.value_or(found_entry.resources),
                        .thread_affinity = thread_affinity,
                        .interrupted = &interrupted};
  if (found_entry.entry.observed_values != nullptr)
    resize_observation(d, found_entry.entry.observed_values(settings.config));
  actions_ = batch(d.action_shape);
  observations_ = batch(d.observation_shape);
  rewards_ = d.agents > 0 ? Shape{size_, static_cast<py::ssize_t>(d.agents)} : Shape{size_};
  is_discrete_ = d.action_count > 0;
  observation_dtype_ = dtype_of(d.observation_type);
  pool_ = found_entry.entry.make(settings);
  step_infos_.emplace(d, size_, settings.autoreset, observation_dtype_, observations_);
  info_level_ = info_level_of(d, settings.autoreset, statistics);
  layout_ = {.settings = {.num_threads = settings.num_threads,
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

void PoolBinding::configure(const std::map<std::string, py::array>& config) {
  const Use use(*this);
  pool_->configure(columns_of(pool_->description(), config));
}

void PoolBinding::reset(const py::array& seeds, const py::array& seeded, const py::array& mask) {
  const bool all = mask.size() == size_ && py::cast<bool>(mask.attr("all")());
  const Use use(*this, all);
  const auto* seed = readable_data<std::uint64_t>(seeds, {size_}, "seeds");
  const auto* with_seed = readable_data<bool>(seeded, {size_}, "seeded");
  const auto* chosen = readable_data<bool>(mask, {size_}, "mask");
  if (under_way() > 0) {
    const Unlocked released;
    async_->drain();
  }
  std::exception_ptr failure;
  for (py::ssize_t i = 0; i < size_; ++i) {
    if (!chosen[i]) continue;
    const auto env = static_cast<std::size_t>(i);
    try {
      pool_->reset(env, with_seed[i] ? seed + i : nullptr);
    } catch (...) {
      if (!failure) failure = explained(pool_->description().id.c_str(), env, std::current_exception());
    }
  }
  // A reset gives the round up, so nothing is written any more; without one the buffers are still in use.
  if (std::any_of(chosen, chosen + size_, [](bool one) { return one; })) buffers_.clear();
  if (failure) std::rethrow_exception(failure);
}

py::array PoolBinding::observation() {
  const Use use(*this);
  py::array out(observation_dtype_, observations_);
  pool_->observe(out.mutable_data());
  return out;
}

py::array PoolBinding::report() {
  const Use use(*this);
  py::array_t<double> out(Shape{size_, report_width()});
  pool_->report(out.mutable_data());
  return out;
}

py::array PoolBinding::draw(std::int64_t environment) {
  const Use use(*this);
  const Description& d = pool_->description();
  if (d.frame_height == 0) throw py::value_error(d.id + " does not draw itself");
  if (environment < 0 || environment >= size_)
    throw py::index_error("environment " + std::to_string(environment) + " is none of " + std::to_string(size_));
  py::array_t<std::uint8_t> out(Shape{d.frame_height, d.frame_width, 3});
  pool_->draw(std::size_t(environment), {out.mutable_data(), std::size_t(out.size())});
  return out;
}

py::tuple PoolBinding::columns() {
  const Use use(*this);
  const std::vector<Column> columns = pool_->columns();
  py::tuple names(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) names[i] = columns[i].name;
  return names;
}

py::dict PoolBinding::save() {
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

void PoolBinding::restore(const std::map<std::string, py::object>& saved) {
  const Use use(*this);
  std::vector<const void*> data;
  std::vector<py::array> presets;
  std::string expected;
  for (const Column& column : pool_->columns()) {
    expected += (expected.empty() ? "" : ", ") + column.name;
    const auto found = saved.find(column.name);
    if (found != saved.end()) {
      data.push_back(column_data(column, found->second));
      continue;
    }
    // A field that this version has added: whoever saved the state stepped as with its preset.
    const auto& fields = pool_->description().config;
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const FieldInfo& one) { return "config." + one.name == column.name; });
    if (field == fields.end()) throw py::value_error("the state lacks '" + column.name + "'");
    presets.push_back(py::module_::import("numpy").attr("full")(size_, field->preset, dtype_of(column.type)));
    data.push_back(column_data(column, presets.back()));
  }
  if (saved.size() + presets.size() != data.size())
    throw py::value_error("the state has " + std::to_string(saved.size()) + " arrays, expected exactly: " + expected);
  pool_->restore(data);
  buffers_.clear();
}

void PoolBinding::close() {
  if (!pool_) return;
  const Use use(*this, true);
  buffers_.clear();
  {
    const Unlocked released;  // threads finish what they have in hand
    if (async_) async_->stop();
  }
  async_.reset();
  pool_.reset();
}

const void* PoolBinding::action_data(const py::object& actions, const Shape& shape) const {
  if (is_discrete_) return readable_data<std::int64_t>(actions, shape, "actions");
  return readable_data<float>(actions, shape, "actions");
}

void* PoolBinding::observation_data(const py::array& array, const Shape& shape) const {
  switch (pool_->description().observation_type) {
    case ValueType::float32: return writable_data<float>(array, shape, "observation");
    case ValueType::float64: return writable_data<double>(array, shape, "observation");
    case ValueType::uint8: return writable_data<std::uint8_t>(array, shape, "observation");
  }
  throw std::logic_error("unknown value type");
}

const void* PoolBinding::column_data(const Column& column, const py::handle& array) const {
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

std::vector<std::vector<double>> PoolBinding::columns_of(const Description& d,
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

void bind_pool(py::module_& module) {
  py::class_<PoolBinding>(module, "Pool")
      .def(py::init<const std::string&, std::int64_t, int, std::int64_t, const std::string&,
                    const std::map<std::string, py::array>&, bool, bool, const std::optional<std::string>&>(),
           py::arg("id"), py::arg("num_envs"), py::arg("num_threads"), py::arg("max_episode_steps"),
           py::arg("autoreset"), py::arg("config"), py::kw_only(), py::arg("statistics") = false,
           py::arg("thread_affinity") = false, py::arg("resources") = py::none())
      .def_property_readonly("num_envs", &PoolBinding::size)
      .def_property_readonly("observation", &PoolBinding::observation)
      .def("configure", &PoolBinding::configure, py::arg("config"))
      .def("reset", &PoolBinding::reset, py::arg("seeds"), py::arg("seeded"), py::arg("mask"))
      .def_property_readonly("report", &PoolBinding::report)
      .def("draw", &PoolBinding::draw, py::arg("environment"))
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
