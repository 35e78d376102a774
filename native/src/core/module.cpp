/// The extension module native._core.
#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The engine of Penstock's environment pools; use it through the native package.";
  penstock::bind_catalog(module);
  penstock::bind_pool(module);
  penstock::bind_random(module);
}
