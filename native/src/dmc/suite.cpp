#include "penstock/dmc/suite.hpp"

#include <array>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "penstock/mujoco/guard.hpp"

namespace penstock::dmc {
namespace {

struct DeleteSpec {
  void operator()(mjSpec* spec) const noexcept { mj_deleteSpec(spec); }
};

/// The files that a text includes are beside its own; a text has no place, so they are named in full.
std::string with_full_paths(std::string xml, const std::string& folder) {
  const std::string relative = "\"./common/", full = "\"" + folder + "/common/";
  for (std::size_t at = 0; (at = xml.find(relative, at)) != std::string::npos; at += full.size())
    xml.replace(at, relative.size(), full);
  return xml;
}

ModelPointer compiled(const std::string& folder, const Listed& listed) {
  const std::string path = folder + "/" + listed.file;
  std::array<char, 1024> said{};
  mjModel* model = nullptr;
  if (listed.edit == nullptr) {
    mujoco::guarded([&] { model = mj_loadXML(path.c_str(), nullptr, said.data(), said.size()); }, mujoco::Warnings::dropped);
  } else {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    const std::string xml = with_full_paths(listed.edit(text.str()), folder);
    mjSpec* parsed = nullptr;
    mujoco::guarded([&] { parsed = mj_parseXMLString(xml.c_str(), nullptr, said.data(), said.size()); },
                    mujoco::Warnings::dropped);
    const std::unique_ptr<mjSpec, DeleteSpec> spec(parsed);
    if (spec != nullptr) {
      mjs_setString(spec->modelfiledir, folder.c_str());  // meshes are there
      mujoco::guarded([&] { model = mj_compile(spec.get(), nullptr); }, mujoco::Warnings::dropped);
      if (model == nullptr) throw std::runtime_error("cannot compile " + path + ": " + mjs_getError(spec.get()));
    }
  }
  if (model == nullptr) throw std::runtime_error("cannot load " + path + ": " + said.data());
  return ModelPointer(model);
}

void require_controls(const mjModel& model, const Listed& listed) {
  if (static_cast<std::size_t>(model.nu) != listed.controls)
    throw std::runtime_error(std::to_string(model.nu) + " controls, expected " + std::to_string(listed.controls));
}

/// A model with more joints would be observed beyond the row of its environment.
void require_observed(const mjModel& model, const Task& task, const Listed& listed) {
  Physics physics(model, 1);
  task.equip(physics);
  physics.reset();
  // Room for several times all that there is to observe.
  const auto all = static_cast<std::size_t>(model.nq + model.nv + model.na + model.nsensordata + model.nbody);
  std::vector<double> room(1024 + 32 * all);
  Writer out(room);
  task.observe(physics, out);
  if (out.count() != listed.observed)
    throw std::runtime_error(std::to_string(out.count()) + " values to observe, expected " +
                             std::to_string(listed.observed));
}

}  // namespace

const Loaded& Suite::loaded(std::int64_t number) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = loaded_.find(number); known != loaded_.end()) return known->second;
  const Listed& listed = dmc::listed().at(static_cast<std::size_t>(number));
  Loaded made{.model = compiled(folder_, listed), .task = nullptr, .substeps = 1};
  try {
    require_controls(*made.model, listed);
    made.task = listed.make(*made.model);
    require_observed(*made.model, *made.task, listed);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(folder_ + "/" + listed.file + " is not the model that " + listed.id + " was written for: " +
                             error.what() + "; expected the file of dm_control 1.0.50");
  }
  if (listed.control_seconds > 0.0) made.substeps = std::lround(listed.control_seconds / made.model->opt.timestep);
  return loaded_.emplace(number, std::move(made)).first->second;
}

}  // namespace penstock::dmc
