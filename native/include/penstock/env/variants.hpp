/// An environment under several ids: each with its own defaults of the configuration, all with the same machine code.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "penstock/env/description.hpp"

namespace penstock {

/// One id and its defaults. The limit and the threshold in `info` are the id's.
template <class Config>
struct Variant {
  Info info;
  Config config;
};

/// An environment that is there under the ids of `variants()`, which returns an array of Variant<Config>, and under
/// no other.
template <class E>
concept HasVariants = requires {
  { E::variants().size() } -> std::convertible_to<std::size_t>;
  { E::variants()[0] } -> std::convertible_to<const Variant<typename E::Config>&>;
};

/// One whose ids differ in more than their configuration: the pool sets its member `variant`, before any reset, to the
/// place of the id in `variants()`. It is saved with the state, and no setting.
template <class E>
concept NumbersItsVariants = HasVariants<E> && requires(E e) {
  { e.variant } -> std::same_as<std::int64_t&>;
};

/// Makes the description of an environment that of one of its ids.
template <HasVariants E>
void describe_variant(Description& d, std::size_t number) {
  const auto variants = E::variants();
  const auto& variant = variants[number];
  d.id = variant.info.id;
  d.max_episode_steps = variant.info.max_episode_steps;
  d.reward_threshold = variant.info.reward_threshold;
  d.config.clear();
  add_fields(d.config, member_table<typename E::Config>, &variant.config);
}

}  // namespace penstock
