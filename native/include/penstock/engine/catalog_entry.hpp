/// Makes the catalog entries of an environment type: its descriptions, and the constructor of its pools.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/batch/host.hpp"
#include "penstock/engine/any_pool.hpp"
#include "penstock/engine/pool.hpp"
#include "penstock/env/variants.hpp"

namespace penstock {

template <Environment E>
[[gnu::cold]] CatalogEntry catalog_entry() {
  CatalogEntry entry{describe<E>(), [](const PoolSettings& settings) -> std::unique_ptr<AnyPool> {
                       return std::make_unique<Pool<E>>(settings);
                     }};
  if constexpr (SizesItself<E>)
    entry.complete = [](Description& d, const std::string& resources) { typename E::Shared(resources).describe(d); };
  if constexpr (SizedByConfig<E>) entry.observed_values = observed_values<E>;
  if constexpr (Batchable<E>) entry.batch = host_kernels<E>();
  return entry;
}

/// Returns one entry, or one for each of an environment's ids.
template <Environment E>
[[gnu::cold]] std::vector<CatalogEntry> catalog_entries() {
  std::vector<CatalogEntry> entries{catalog_entry<E>()};
  if constexpr (HasVariants<E>) {
    entries.resize(E::variants().size(), entries.front());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].variant = i;
      describe_variant<E>(entries[i].description, i);
    }
  }
  return entries;
}

}  // namespace penstock
