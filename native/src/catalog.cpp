/// The environments that there are: those built in, and those of libraries that were loaded. A new built-in one is its
/// header and one line here.
#include <dlfcn.h>
#include <pybind11/stl.h>

#include <map>

#include "bindings.hpp"
#include "penstock/envs/acrobot.hpp"
#include "penstock/envs/cartpole.hpp"
#include "penstock/envs/mountain_car.hpp"
#include "penstock/envs/mountain_car_continuous.hpp"
#include "penstock/envs/pendulum.hpp"
#include "penstock/envs/simple_spread.hpp"
#include "penstock/library.hpp"
#include "penstock/pool.hpp"

namespace penstock {
namespace {

using Catalog = std::map<std::string, Registered>;

Catalog& catalog() {
  static Catalog entries = [] {
    Catalog built_in;
    for (const CatalogEntry& entry : {
             catalog_entry<Acrobot>(),
             catalog_entry<CartPole>(),
             catalog_entry<MountainCar>(),
             catalog_entry<MountainCarContinuous>(),
             catalog_entry<Pendulum>(),
             catalog_entry<SimpleSpread>(),
             catalog_entry<SimpleSpreadContinuous>(),
         })
      built_in.emplace(entry.description.id, Registered{entry, "", ""});
    return built_in;
  }();
  return entries;
}

/// Adds a library's environments; their ids. One that came from a library before is replaced, pools of it live on:
/// libraries are never unloaded.
std::vector<std::string> load_library(const std::string& path, const std::string& resources) {
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
  std::vector<std::string> ids;
  for (const CatalogEntry& entry : *library.entries) {
    const auto found = catalog().find(entry.description.id);
    if (found != catalog().end() && found->second.library.empty())
      throw py::value_error("'" + path + "' has an environment called '" + entry.description.id +
                            "', which is built in: give yours another id");
    ids.push_back(entry.description.id);
  }
  for (const CatalogEntry& entry : *library.entries)
    catalog().insert_or_assign(entry.description.id, Registered{entry, path, resources});
  return ids;
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
  module.def("load_library", &load_library, py::arg("path"), py::arg("resources") = "");
}

}  // namespace penstock
