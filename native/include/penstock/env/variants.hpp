/// An environment under several ids: each with its own defaults of the configuration, all with the same machine code.
#pragma once

#include <concepts>
#include <cstddef>

#include "penstock/env/environment.hpp"

namespace penstock {

/// One id and its defaults. The limit and the threshold in `info` are the id's.
template <class Config>
struct Variant {
  Info info;
  Config config;
};

/// An environment that is there under the ids of `variants()`, a which returns an array of Variant<Config>, and under
/// no other.
template <class E>
concept HasVariants = requires {
  { E::variants().size() } -> std::convertible_to<std::size_t>;
  { E::variants()[0] } -> std::convertible_to<const Variant<typename E::Config>&>;
};

}  // namespace penstock
