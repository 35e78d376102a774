/// The environments that are built in. A new one is its header and one line here.
#include "bindings.hpp"
#include "penstock/envs/cartpole.hpp"
#include "penstock/envs/pendulum.hpp"
#include "penstock/pool.hpp"

namespace penstock {

const std::vector<CatalogEntry>& catalog() {
  static const std::vector<CatalogEntry> entries{
      catalog_entry<CartPole>(),
      catalog_entry<Pendulum>(),
  };
  return entries;
}

}  // namespace penstock
