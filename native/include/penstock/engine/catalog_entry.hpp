/// Makes the catalog entry of an environment type: its description, and the constructor of its pools.
#pragma once

#include <memory>
#include <string>

#include "penstock/batch/host.hpp"
#include "penstock/engine/any_pool.hpp"
#include "penstock/engine/pool.hpp"

namespace penstock {

template <Environment E>
CatalogEntry catalog_entry() {
  CatalogEntry entry{describe<E>(), [](const PoolSettings& settings) -> std::unique_ptr<AnyPool> {
                       return std::make_unique<Pool<E>>(settings);
                     }};
  if constexpr (SizesItself<E>)
    entry.complete = [](Description& d, const std::string& resources) { typename E::Shared(resources).describe(d); };
  if constexpr (SizedByConfig<E>) entry.observed_values = observed_values<E>;
  if constexpr (Batchable<E>) entry.batch = host_kernels<E>();
  return entry;
}

}  // namespace penstock
