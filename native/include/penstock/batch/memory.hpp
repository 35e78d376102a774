/// The memory of a batch: many environments of one type as plain arrays, on a host or on a GPU.
///
/// Each number of the configuration and of the state is a column of `environments` values; an array has a column for each
/// element. Columns of 8 bytes follow each other in `words`, in the order of the members, and bools in `flags`. Behind
/// the state's words are those of the framework: the episode's return (double), steps and number (int64), and the five
/// words of the generator. Neighbours read neighbouring addresses, as GPUs want it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "penstock/engine/slot.hpp"
#include "penstock/env/variants.hpp"

namespace penstock {

/// An environment that needs nothing but its configuration, its state and a generator. Those that share a model, save
/// themselves or report numbers are for pools alone.
template <class E>
concept Batchable = Environment<E> && PlainState<E> && !SharesSomething<E> && !Reports<E> && !HasVariants<E>;

/// The addresses of a batch. They are of one device, fixed for its life, and the caller's to keep.
struct BatchArrays {
  std::size_t environments = 0;
  std::int64_t max_episode_steps = 0;  ///< 0: episodes have no limit
  const void* config_words = nullptr;  ///< this and the following: [columns, environments]
  const bool* config_flags = nullptr;
  void* words = nullptr;
  bool* flags = nullptr;
  std::int32_t device = 0;  ///< number of the GPU; nothing to a host
};

template <class T>
inline constexpr std::size_t scalars_of = 1;
template <class T, std::size_t Size>
inline constexpr std::size_t scalars_of<std::array<T, Size>> = Size;
template <class T>
inline constexpr bool is_flag = std::same_as<T, bool>;
template <class T, std::size_t Size>
inline constexpr bool is_flag<std::array<T, Size>> = std::same_as<T, bool>;

/// The number of columns of 8 bytes that the members of S take.
template <HasFields S>
inline constexpr std::size_t words_of = [] {
  std::size_t count = 0;
  for_each_field<S>([&](const auto& field) {
    using T = typename std::remove_cvref_t<decltype(field)>::Type;
    if (!is_flag<T>) count += scalars_of<T>;
  });
  return count;
}();

/// Reads one environment's columns, one after the other.
struct ColumnReader {
  const void* words;
  const bool* flags;
  std::size_t environments, environment;
  std::size_t word = 0, flag = 0;

  template <class T>
  PENSTOCK_HOST_DEVICE void take(T& value) {
    if constexpr (std::same_as<T, bool>) value = flags[flag++ * environments + environment];
    else value = static_cast<const T*>(words)[word++ * environments + environment];
  }
};

/// Writes one environment's columns, one after the other.
struct ColumnWriter {
  void* words;
  bool* flags;
  std::size_t environments, environment;
  std::size_t word = 0, flag = 0;

  template <class T>
  PENSTOCK_HOST_DEVICE void put(const T& value) {
    if constexpr (std::same_as<T, bool>) flags[flag++ * environments + environment] = value;
    else static_cast<T*>(words)[word++ * environments + environment] = value;
  }
};

/// Refers to member number Index of a struct. The pointer is a constant, which compilers see through.
template <std::size_t Index, class S>
PENSTOCK_HOST_DEVICE auto& member_of(S& value) {
  constexpr auto member = std::get<Index>(std::remove_const_t<S>::fields()).member;
  return value.*member;
}

template <class T, class Visit>
PENSTOCK_HOST_DEVICE void visit_member(T& member, Visit& visit) {
  if constexpr (is_field_array<std::remove_const_t<T>>)
    for (auto& element : member) visit(element);
  else
    visit(member);
}

/// Calls `visit(scalar)` for every number of a struct, in the order of the members; an array gives each of its elements.
template <class S, class Visit>
PENSTOCK_HOST_DEVICE void for_each_scalar([[maybe_unused]] S& value, [[maybe_unused]] Visit visit) {
  [&]<std::size_t... Index>(std::index_sequence<Index...>) {
    (visit_member(member_of<Index>(value), visit), ...);
  }(std::make_index_sequence<std::tuple_size_v<decltype(std::remove_const_t<S>::fields())>>{});
}

/// Reads an environment with its counters, without its generator, which most steps need not.
template <Batchable E>
PENSTOCK_HOST_DEVICE Slot<E> load_slot(const BatchArrays& batch, std::size_t env) {
  Slot<E> slot{E{}};
  ColumnReader config{batch.config_words, batch.config_flags, batch.environments, env};
  for_each_scalar(slot.env.config, [&](auto& value) { config.take(value); });
  ColumnReader state{batch.words, batch.flags, batch.environments, env};
  for_each_scalar(slot.env.state, [&](auto& value) { state.take(value); });
  state.take(slot.total_reward);
  state.take(slot.elapsed_steps);
  state.take(slot.episode_id);
  slot.started = true;
  return slot;
}

/// Writes the state and the counters of an environment.
template <Batchable E>
PENSTOCK_HOST_DEVICE void store_slot(const Slot<E>& slot, const BatchArrays& batch, std::size_t env) {
  ColumnWriter state{batch.words, batch.flags, batch.environments, env};
  for_each_scalar(slot.env.state, [&](const auto& value) { state.put(value); });
  state.put(slot.total_reward);
  state.put(slot.elapsed_steps);
  state.put(slot.episode_id);
}

template <Batchable E>
PENSTOCK_HOST_DEVICE Rng load_generator(const BatchArrays& batch, std::size_t env) {
  ColumnReader from{batch.words, batch.flags, batch.environments, env, words_of<typename E::State> + 3};
  Rng::Words words{};
  for (std::uint64_t& word : words) from.take(word);
  return Rng::from_words(words);
}

template <Batchable E>
PENSTOCK_HOST_DEVICE void store_generator(const Rng& rng, const BatchArrays& batch, std::size_t env) {
  ColumnWriter to{batch.words, batch.flags, batch.environments, env, words_of<typename E::State> + 3};
  const Rng::Words words = rng.words();
  for (const std::uint64_t word : words) to.put(word);
}

}  // namespace penstock
