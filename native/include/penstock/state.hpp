/// The state of a pool as named, typed columns: everything that the next step depends on, bit for bit.
///
/// The configuration travels along and must be the same on restore: a state that goes on under another gravity would be
/// neither run.
#pragma once

#include <cstring>
#include <limits>

#include "penstock/slot.hpp"

namespace penstock {

template <FieldType T>
inline constexpr Column::Type column_type = std::same_as<T, double> ? Column::Type::real
    : std::same_as<T, bool>                                        ? Column::Type::boolean
                                                                   : Column::Type::integer;

/// Calls visit(name, type, width, access) for every column, where access(slot) refers to its value in a slot. The
/// generator's column is last and visited apart: its value is not a member.
template <Environment E, class Visit>
void for_each_column(Visit&& visit) {
  const auto fields = [&]<HasFields S>(const char* prefix, auto part) {
    for_each_field<S>([&](const auto& field) {
      using T = typename std::remove_cvref_t<decltype(field)>::Type;
      visit(std::string(prefix) + field.name, column_type<T>,
            [part, member = field.member](auto& slot) -> auto& { return part(slot).*member; });
    });
  };
  fields.template operator()<typename E::Config>("config.", [](auto& slot) -> auto& { return slot.env.config; });
  fields.template operator()<typename E::State>("state.", [](auto& slot) -> auto& { return slot.env.state; });
  visit("elapsed_steps", Column::Type::integer, [](auto& slot) -> auto& { return slot.elapsed_steps; });
  visit("episode_id", Column::Type::integer, [](auto& slot) -> auto& { return slot.episode_id; });
  visit("episode_return", Column::Type::real, [](auto& slot) -> auto& { return slot.total_reward; });
}

template <Environment E>
std::vector<Column> state_columns() {
  std::vector<Column> columns;
  for_each_column<E>([&](std::string name, Column::Type type, auto) { columns.push_back({std::move(name), type, 0}); });
  columns.push_back({"generator", Column::Type::word, std::tuple_size_v<Rng::Words>});
  return columns;
}

template <Environment E>
void save_slots(const std::vector<Slot<E>>& slots, std::span<void* const> columns) {
  std::size_t index = 0;
  for_each_column<E>([&](const std::string&, Column::Type, auto access) {
    using T = std::remove_cvref_t<decltype(access(slots.front()))>;
    T* out = static_cast<T*>(columns[index++]);
    for (const Slot<E>& slot : slots) *out++ = access(slot);
  });
  auto* words = static_cast<Rng::Words*>(columns[index]);
  for (const Slot<E>& slot : slots) *words++ = slot.rng.words();
}

/// New slots with the saved values; `slots` gives the number and the configuration and stays as it is.
template <Environment E>
std::vector<Slot<E>> restore_slots(const std::vector<Slot<E>>& slots, std::span<const void* const> columns) {
  std::vector<Slot<E>> restored = slots;
  const auto refuse = [](const std::string& name, std::size_t env, const std::string& why) {
    throw std::invalid_argument("the state's " + name + " of environment " + std::to_string(env) + " " + why);
  };
  std::size_t index = 0;
  for_each_column<E>([&](const std::string& name, Column::Type, auto access) {
    using T = std::remove_cvref_t<decltype(access(slots.front()))>;
    const T* in = static_cast<const T*>(columns[index++]);
    for (std::size_t env = 0; env < slots.size(); ++env) {
      if (name.starts_with("config.") && in[env] != access(slots[env]))
        refuse(name, env,
               "is " + std::to_string(in[env]) + " but this pool has " + std::to_string(access(slots[env])) +
                   ": make the pool with the configuration of the run that saved it");
      access(restored[env]) = in[env];
    }
  });
  const auto* words = static_cast<const Rng::Words*>(columns[index]);
  for (std::size_t env = 0; env < slots.size(); ++env) {
    if ((words[env][3] & 1u) == 0) refuse("generator", env, "is not one of PCG64: its increment is even");
    restored[env].rng = Rng::from_words(words[env]);
    restored[env].seeded = restored[env].started = true;
    if (restored[env].elapsed_steps < 0) refuse("elapsed_steps", env, "is negative");
    if (restored[env].episode_id < 0 || restored[env].episode_id > std::numeric_limits<std::int32_t>::max())
      refuse("episode_id", env, "is not in the range of int32");
  }
  return restored;
}

}  // namespace penstock
