/// Compiles the environments that are built in, apart from all that needs Python's headers.
#include "penstock/envs/built_in.hpp"

#include <tuple>
#include <type_traits>

#include "penstock/library.hpp"

namespace penstock {

std::vector<CatalogEntry> built_in_entries() {
  std::vector<CatalogEntry> all;
  [&]<class... E>(std::type_identity<std::tuple<E...>>) {
    (add_entries<E>(all), ...);
  }(std::type_identity<std::tuple<PENSTOCK_BUILT_IN>>{});
  return all;
}

}  // namespace penstock
