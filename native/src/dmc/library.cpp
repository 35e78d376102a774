/// The control suite's tasks as a library of environments; native/pool/control_suite.py loads it.
#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "penstock/dmc/environment.hpp"
#include "penstock/library.hpp"
#include "penstock/mujoco/guard.hpp"

using namespace penstock::dmc;

PENSTOCK_LIBRARY(Environment<1>, Environment<2>, Environment<4>, Environment<5>, Environment<6>, Environment<12>,
                 Environment<14>, Environment<21>, Environment<38>, Environment<56>, Environment<1, true>,
                 Environment<2, true>)

/// Writes the model of an environment with that saved state, its own arrays among it, as MuJoCo's binary file; or says why it
/// cannot, in at most `size` bytes, and returns false.
extern "C" __attribute__((visibility("default"))) bool penstock_dmc_save_model(const char* folder, const char* id,
                                                                               const double* state, std::size_t values,
                                                                               const char* path, char* said,
                                                                               std::size_t size) {
  try {
    const auto& all = listed();
    const auto found = std::find_if(all.begin(), all.end(), [id](const Listed& one) { return one.id == std::string(id); });
    if (found == all.end()) throw std::runtime_error(std::string("the suite has no ") + id);
    const Suite suite(folder);
    const Loaded& loaded = suite.loaded(found - all.begin());
    Physics physics(*loaded.model, loaded.substeps);
    loaded.task->equip(physics);
    if (values != physics.state_size())
      throw std::runtime_error("a state of " + std::to_string(values) + " values, expected " +
                               std::to_string(physics.state_size()));
    physics.load(std::span(state, values));
    penstock::mujoco::guarded([&] { mj_saveModel(&physics.model, path, nullptr, 0); });
    return true;
  } catch (const std::exception& error) {
    std::strncpy(said, error.what(), size);
    said[size - 1] = '\0';
    return false;
  }
}
