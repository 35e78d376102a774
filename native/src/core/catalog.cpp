/// The environments that there are: those built in (built_in.cpp), and those of libraries that were loaded.
#include <dlfcn.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "bindings.hpp"
#include "penstock/library.hpp"
#include "penstock/engine/catalog_entry.hpp"

namespace penstock {
namespace {

using Catalog = std::map<std::string, Registered>;

Catalog& catalog() {
  static Catalog entries = [] {
    Catalog built_in;
    for (CatalogEntry entry : built_in_entries()) {
      if (entry.complete != nullptr) entry.complete(entry.description, "");
      built_in.emplace(entry.description.id, Registered{entry, "", ""});
    }
    return built_in;
  }();
  return entries;
}

/// Adds a library's environments; their ids. One that came from a library before is replaced, pools of it live on:
/// libraries are never unloaded. With `id` the library's only environment is called that, so that it can be there for
/// several folders of resources at once.
std::vector<std::string> load_library(const std::string& path, const std::string& resources, const std::string& id,
                                      const std::set<std::string>& reserved) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error("cannot load '" + path + "': " + dlerror());
  const auto entry_point = reinterpret_cast<LibraryEntryPoint>(dlsym(handle, library_entry_point));
  if (entry_point == nullptr)
    throw std::runtime_error("'" + path + "' is no library of environments: it has no " + library_entry_point +
                             "(); write PENSTOCK_LIBRARY(YourEnvironment) in one of its source files");
  const Library& library = *entry_point();
  if (std::string(library.border) != border)
    throw std::runtime_error("'" + path + "' was compiled for " + library.border + ", this is " + border +
                             ": compile it again, with this Penstock's headers");
  std::vector<CatalogEntry> entries = *library.entries;
  if (!id.empty() && entries.size() != 1)
    throw py::value_error("'" + path + "' has " + std::to_string(entries.size()) + " environments, expected one to be called '" + id + "'");
  for (CatalogEntry& entry : entries) {
    if (!id.empty()) entry.description.id = id;
    if (entry.complete != nullptr) entry.complete(entry.description, resources);
  }
  std::vector<std::string> ids;
  for (const CatalogEntry& entry : entries) {
    const auto found = catalog().find(entry.description.id);
    if ((found != catalog().end() && found->second.library.empty()) || reserved.contains(entry.description.id))
      throw py::value_error("'" + path + "' has an environment called '" + entry.description.id +
                            "', which is built in: give yours another id");
    ids.push_back(entry.description.id);
  }
  for (const CatalogEntry& entry : entries)
    catalog().insert_or_assign(entry.description.id, Registered{entry, path, resources});
  return ids;
}

py::dict describe_entry(const std::string& id, const std::map<std::string, double>& given,
                        const std::optional<std::string>& resources) {
  const CatalogEntry& entry = registered(id).entry;
  Description d = entry.description;
  if (resources && entry.complete != nullptr) entry.complete(d, *resources);
  if (entry.observed_values != nullptr) {
    std::vector<std::vector<double>> columns;
    for (const FieldInfo& field : d.config) {
      const auto found = given.find(field.name);
      columns.push_back({found == given.end() ? field.preset : found->second});
    }
    resize_observation(d, entry.observed_values(columns));
  }
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
  if (d.masks_actions) out["behind_mask"] = py::tuple(py::cast(d.behind_mask));
  out["action_count"] = d.action_count;
  out["action_shape"] = py::tuple(py::cast(d.action_shape));
  out["action_low"] = to_array(d.action_low, is_box ? d.action_shape : std::vector<std::int64_t>{0});
  out["action_high"] = to_array(d.action_high, is_box ? d.action_shape : std::vector<std::int64_t>{0});
  out["agents"] = d.agents;
  out["config"] = config;
  if (!d.step_limit.empty()) out["step_limit"] = d.step_limit;
  py::tuple reports(d.reports.size());
  for (std::size_t i = 0; i < d.reports.size(); ++i)
    reports[i] = py::make_tuple(d.reports[i].name, d.reports[i].width, d.reports[i].is_mask);
  out["reports"] = reports;
  out["reset_reports"] = d.reset_reports;
  if (d.frame_height > 0) out["frame"] = py::make_tuple(d.frame_height, d.frame_width);
  py::dict facts;
  for (const Fact& fact : d.facts) facts[fact.name.c_str()] = to_array(fact.values, fact.shape);
  if (!d.facts.empty()) out["facts"] = facts;
  return out;
}

}  // namespace

const Registered& registered(const std::string& id) {
  const auto found = catalog().find(id);
  if (found != catalog().end()) return found->second;
  std::string known;
  for (const auto& [name, entry] : catalog()) known += (known.empty() ? "" : ", ") + name;
  throw py::value_error("no environment is called '" + id + "'; there are: " + known);
}

void bind_catalog(py::module_& module) {
  module.def("environment_ids", [] {
    std::vector<std::string> ids;
    for (const auto& [id, entry] : catalog()) ids.push_back(id);
    return py::tuple(py::cast(ids));
  });
  module.def("describe", &describe_entry, py::arg("id"), py::arg("config") = std::map<std::string, double>(),
             py::arg("resources") = py::none());
  module.def("batch_kernels", [](const std::string& id) {
    return reinterpret_cast<std::uintptr_t>(registered(id).entry.batch);
  }, py::arg("id"));
  module.def("load_library", &load_library, py::arg("path"), py::arg("resources") = "",
             py::arg("id") = "", py::arg("reserved") = std::set<std::string>());
}

}  // namespace penstock
