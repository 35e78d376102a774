/// The state of a pool as named, typed columns: everything that the next step depends on, bit for bit.
///
/// The configuration travels along and must be the same on restore: a state that resumes under another gravity would be
/// neither run.
#pragma once

#include <cstring>
#include <limits>

#include "penstock/engine/slot.hpp"
#include "penstock/env/variants.hpp"

namespace penstock {

template <FieldType T>
inline constexpr Column::Type column_type = std::same_as<T, double> ? Column::Type::real
    : std::same_as<T, bool>                                        ? Column::Type::boolean
                                                                   : Column::Type::integer;

template <class T>
struct Element {
  using Type = T;
  static constexpr std::size_t width = 0;
};
template <class T, std::size_t Size>
struct Element<std::array<T, Size>> {
  using Type = T;
  static constexpr std::size_t width = Size;
};

/// Calls visit(name, access) for every column that is a member, where access(slot) refers to its value in a slot.
template <Environment E, class Visit>
void for_each_column(Visit&& visit) {
  const auto fields = [&]<HasFields S>(const char* prefix, auto part) {
    for_each_field<S>([&](const auto& field) {
      visit(std::string(prefix) + field.name,
            [part, member = field.member](auto& slot) -> auto& { return part(slot).*member; });
    });
  };
  fields.template operator()<typename E::Config>("config.", [](auto& slot) -> auto& { return slot.env.config; });
  if constexpr (PlainState<E>)
    fields.template operator()<typename E::State>("state.", [](auto& slot) -> auto& { return slot.env.state; });
  if constexpr (Reports<E>)
    fields.template operator()<typename E::Report>("report.", [](auto& slot) -> auto& { return slot.env.report; });
  if constexpr (NumbersItsVariants<E>) visit("variant", [](auto& slot) -> auto& { return slot.env.variant; });
  visit("elapsed_steps", [](auto& slot) -> auto& { return slot.elapsed_steps; });
  visit("episode_id", [](auto& slot) -> auto& { return slot.episode_id; });
  visit("episode_return", [](auto& slot) -> auto& { return slot.total_reward; });
  visit("episode_ended", [](auto& slot) -> auto& { return slot.ended; });
}

/// The members' columns, then the generator and, if the environment saves itself, its state.
template <Environment E>
std::vector<Column> state_columns(const std::vector<Slot<E>>& slots) {
  std::vector<Column> columns;
  for_each_column<E>([&](std::string name, auto access) {
    using Of = Element<std::remove_cvref_t<decltype(access(slots.front()))>>;
    columns.push_back({std::move(name), column_type<typename Of::Type>, Of::width});
  });
  columns.push_back({"generator", Column::Type::word, std::tuple_size_v<Rng::Words>});
  if constexpr (SavesItself<E>) columns.push_back({"state", Column::Type::real, slots.front().env.state_size()});
  return columns;
}

template <Environment E>
void save_slots(const std::vector<Slot<E>>& slots, std::span<void* const> columns) {
  std::size_t index = 0;
  for_each_column<E>([&](const std::string&, auto access) {
    using T = std::remove_cvref_t<decltype(access(slots.front()))>;
    T* out = static_cast<T*>(columns[index++]);
    for (const Slot<E>& slot : slots) *out++ = access(slot);
  });
  auto* words = static_cast<Rng::Words*>(columns[index++]);
  for (const Slot<E>& slot : slots) *words++ = slot.rng.words();
  if constexpr (SavesItself<E>) {
    const std::size_t width = slots.front().env.state_size();
    auto* rows = static_cast<double*>(columns[index]);
    for (const Slot<E>& slot : slots) slot.env.save(std::span(rows, width)), rows += width;
  }
}

[[noreturn]] inline void refuse_state(const std::string& name, std::size_t env, const std::string& why) {
  throw std::invalid_argument("the state's " + name + " of environment " + std::to_string(env) + " " + why);
}

/// Throws unless the columns are a state that these slots can take.
template <Environment E>
void check_state(const std::vector<Slot<E>>& slots, std::span<const void* const> columns) {
  std::size_t index = 0;
  for_each_column<E>([&](const std::string& name, auto access) {
    using T = std::remove_cvref_t<decltype(access(slots.front()))>;
    const T* in = static_cast<const T*>(columns[index++]);
    for (std::size_t env = 0; env < slots.size(); ++env) {
      if constexpr (FieldType<T>) {
        if (name.starts_with("config.") && in[env] != access(slots[env]))
          refuse_state(name, env,
                       "is " + std::to_string(in[env]) + " but this pool has " + std::to_string(access(slots[env])) +
                           ": make the pool with the configuration of the run that saved it");
      }
      if constexpr (std::same_as<T, std::int64_t>) {
        if (name == "variant" && in[env] != access(slots[env]))
          refuse_state(name, env,
                       "is " + std::to_string(in[env]) + " but this pool's is " + std::to_string(access(slots[env])) +
                           ": it was saved by a pool of another id");
        if (name == "elapsed_steps" && in[env] < 0) refuse_state(name, env, "is negative");
        if (name == "episode_id" && (in[env] < 0 || in[env] > std::numeric_limits<std::int32_t>::max()))
          refuse_state(name, env, "is not in the range of int32");
      }
    }
  });
  const auto* words = static_cast<const Rng::Words*>(columns[index]);
  for (std::size_t env = 0; env < slots.size(); ++env)
    if (!Rng::are_words(words[env]))
      refuse_state("generator", env, "is not one of PCG64: its increment is even, or its kept half is not one");
  if constexpr (ChecksState<E>) {
    for (std::size_t env = 0; env < slots.size(); ++env) {
      Slot<E> tried = slots[env];
      index = 0;
      for_each_column<E>([&](const std::string&, auto access) {
        using T = std::remove_cvref_t<decltype(access(tried))>;
        access(tried) = static_cast<const T*>(columns[index++])[env];
      });
      if (const char* why = tried.env.state_problem())
        throw std::invalid_argument("the state of environment " + std::to_string(env) + " " + why);
    }
  }
}

/// Loads a state that was checked. If an environment refuses to load its own, all are left as they were.
template <Environment E>
void restore_slots(std::vector<Slot<E>>& slots, std::span<const void* const> columns) {
  if constexpr (SavesItself<E>) {
    const std::size_t width = slots.front().env.state_size();
    const auto* rows = static_cast<const double*>(columns.back());
    std::vector<double> before(slots.size() * width);
    for (std::size_t env = 0; env < slots.size(); ++env)
      slots[env].env.save(std::span(before).subspan(env * width, width));
    for (std::size_t env = 0; env < slots.size(); ++env) {
      try {
        slots[env].env.load(std::span(rows + env * width, width));
      } catch (const std::exception& error) {
        for (std::size_t done = 0; done <= env; ++done)
          slots[done].env.load(std::span<const double>(before).subspan(done * width, width));
        refuse_state("state", env, std::string("cannot be loaded: ") + error.what());
      }
    }
  }
  std::size_t index = 0;
  for_each_column<E>([&](const std::string&, auto access) {
    using T = std::remove_cvref_t<decltype(access(slots.front()))>;
    const T* in = static_cast<const T*>(columns[index++]);
    for (Slot<E>& slot : slots) access(slot) = *in++;
  });
  const auto* words = static_cast<const Rng::Words*>(columns[index]);
  for (Slot<E>& slot : slots) {
    slot.rng = Rng::from_words(*words++);
    slot.seeded = slot.started = true;
  }
}

}  // namespace penstock
