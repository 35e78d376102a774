/// The state of a pool as named, typed columns: everything that the next step depends on, bit for bit.
///
/// The configuration travels along and must be the same on restore: a state that resumes under another gravity would be
/// neither run.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "penstock/engine/slot.hpp"
#include "penstock/env/variants.hpp"

namespace penstock {

/// The slots of a pool without their type: rows of bytes, and where in each of them the columns are.
class SlotRows {
 public:
  /// `slots` are not changed except by `restore`, which those alone may call who may write to them.
  template <Environment E>
  explicit SlotRows(const std::vector<Slot<E>>& slots)
      : first_(const_cast<std::byte*>(reinterpret_cast<const std::byte*>(slots.data()))), stride_(sizeof(Slot<E>)),
        count_(slots.size()) {
    static_assert(std::same_as<decltype(E::config), typename E::Config>);
    const Slot<E>& slot = slots.front();
    add("config.", member_table<typename E::Config>, &slot.env.config);
    checked_ = columns_.size();
    if constexpr (PlainState<E>) add("state.", member_table<typename E::State>, &slot.env.state);
    if constexpr (Reports<E>) add("report.", member_table<typename E::Report>, &slot.env.report);
    if constexpr (NumbersItsVariants<E>) add("", std::array{Member{"variant", FieldKind::integer, 0, 0}}, &slot.env.variant);
    add("", std::array{Member{"elapsed_steps", FieldKind::integer, 0, 0}}, &slot.elapsed_steps);
    add("", std::array{Member{"episode_id", FieldKind::integer, 0, 0}}, &slot.episode_id);
    add("", std::array{Member{"episode_return", FieldKind::real, 0, 0}}, &slot.total_reward);
    add("", std::array{Member{"episode_ended", FieldKind::boolean, 0, 0}}, &slot.ended);
    generator_ = offset(&slot.rng);
  }

  /// Returns the members' columns, then the generator.
  [[nodiscard]] std::vector<Column> columns() const {
    std::vector<Column> columns;
    for (const Placed& placed : columns_) columns.push_back({placed.name(), type_of(placed.member.kind), placed.member.width});
    columns.push_back({"generator", Column::Type::word, std::tuple_size_v<Rng::Words>});
    return columns;
  }

  void save(std::span<void* const> columns) const {
    for (std::size_t index = 0; index < columns_.size(); ++index) {
      auto* out = static_cast<std::byte*>(columns[index]);
      each(columns_[index].member, [&](std::byte* place, std::size_t bytes) {
        std::memcpy(out, place, bytes);
        out += bytes;
      });
    }
    auto* words = static_cast<Rng::Words*>(columns[columns_.size()]);
    for (std::size_t env = 0; env < count_; ++env) *words++ = at<Rng>(env, generator_).words();
  }

  /// Throws unless the columns are a state that these slots can take.
  void check(std::span<const void* const> columns) const {
    for (std::size_t index = 0; index < columns_.size(); ++index) check_column(index, columns[index]);
    const auto* words = static_cast<const Rng::Words*>(columns[columns_.size()]);
    for (std::size_t env = 0; env < count_; ++env)
      if (!Rng::are_words(words[env]))
        refuse("generator", env, "is not one of PCG64: its increment is even, or its kept half is not one");
  }

  /// Loads a state that was checked.
  void restore(std::span<const void* const> columns) const {
    for (std::size_t index = 0; index < columns_.size(); ++index) {
      const auto* in = static_cast<const std::byte*>(columns[index]);
      const Member& member = columns_[index].member;
      each(member, [&](std::byte* place, std::size_t bytes) {
        std::memcpy(place, in, bytes);
        if (member.kind == FieldKind::boolean)  // another byte is no bool to C++
          std::transform(place, place + bytes, place, [](std::byte flag) { return std::byte{flag != std::byte{}}; });
        in += bytes;
      });
    }
    const auto* words = static_cast<const Rng::Words*>(columns[columns_.size()]);
    for (std::size_t env = 0; env < count_; ++env) at<Rng>(env, generator_) = Rng::from_words(*words++);
  }

  [[noreturn]] static void refuse(const std::string& name, std::size_t env, const std::string& why) {
    throw std::invalid_argument("the state's " + name + " of environment " + std::to_string(env) + " " + why);
  }

 private:
  /// A member whose offset is from the beginning of its slot.
  struct Placed {
    const char* prefix;
    Member member;

    [[nodiscard]] std::string name() const { return std::string(prefix) + member.name; }
  };

  static Column::Type type_of(FieldKind kind) {
    if (kind == FieldKind::boolean) return Column::Type::boolean;
    return kind == FieldKind::integer ? Column::Type::integer : Column::Type::real;
  }

  [[nodiscard]] std::size_t offset(const void* part) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(part) - first_);
  }
  void add(const char* prefix, std::span<const Member> members, const void* object) {
    for (Member member : members) {
      member.offset += offset(object);
      columns_.push_back({prefix, member});
    }
  }
  template <class T>
  [[nodiscard]] T& at(std::size_t env, std::size_t offset) const {
    return *reinterpret_cast<T*>(first_ + env * stride_ + offset);
  }

  /// Calls body(place, bytes) for every slot's member; with a constant number of bytes where it is a single one.
  template <class Body>
  void each(const Member& member, Body&& body) const {
    std::byte* place = first_ + member.offset;
    const std::size_t bytes = member.bytes();
    if (bytes == sizeof(double))
      for (std::size_t env = 0; env < count_; ++env, place += stride_) body(place, sizeof(double));
    else
      for (std::size_t env = 0; env < count_; ++env, place += stride_) body(place, bytes);
  }

  void check_column(std::size_t index, const void* column) const {
    const Member& member = columns_[index].member;
    const std::string name = columns_[index].name();
    // A header's own state may have one that its reset leaves unset, which was saved as it was.
    if (member.kind == FieldKind::boolean && (index < checked_ || *columns_[index].prefix == '\0')) {
      const auto* flags = static_cast<const std::uint8_t*>(column);
      for (std::size_t env = 0; env < count_; ++env, flags += member.bytes())
        if (std::any_of(flags, flags + member.bytes(), [](std::uint8_t flag) { return flag > 1; }))
          refuse(name, env, "is neither true nor false");
    }
    if (index < checked_) {
      for (std::size_t env = 0; env < count_; ++env) {
        const void* own = &at<std::byte>(env, member.offset);
        const void* given = static_cast<const std::byte*>(column) + env * member.bytes();
        const Member value{member.name, member.kind, 0, 0};
        if (!are_alike(own, given, {&value, 1}))
          refuse(name, env, "is " + text_of(given, member.kind) + " but this pool has " + text_of(own, member.kind) +
                                ": make the pool with the configuration of the run that saved it");
      }
    }
    if (name != "elapsed_steps" && name != "episode_id" && name != "variant") return;
    const auto* counts = static_cast<const std::int64_t*>(column);
    for (std::size_t env = 0; env < count_; ++env) {
      if (const std::int64_t own = at<std::int64_t>(env, member.offset); name == "variant" && counts[env] != own)
        refuse(name, env, "is " + std::to_string(counts[env]) + " but this pool's is " + std::to_string(own) +
                              ": it was saved by a pool of another id");
      if (name == "elapsed_steps" && counts[env] < 0) refuse(name, env, "is negative");
      if (name == "episode_id" && (counts[env] < 0 || counts[env] > std::numeric_limits<std::int32_t>::max()))
        refuse(name, env, "is not in the range of int32");
    }
  }

  static std::string text_of(const void* value, FieldKind kind) {
    if (kind == FieldKind::real) return std::to_string(*static_cast<const double*>(value));
    if (kind == FieldKind::integer) return std::to_string(*static_cast<const std::int64_t*>(value));
    return std::to_string(*static_cast<const bool*>(value));
  }

  std::byte* first_;
  std::size_t stride_, count_;
  std::vector<Placed> columns_;
  std::size_t checked_ = 0;  ///< the first columns, those of the configuration, must be equal
  std::size_t generator_ = 0;
};

/// Returns the members' columns, the generator and, if the environment saves itself, its state.
template <Environment E>
std::vector<Column> state_columns(const std::vector<Slot<E>>& slots) {
  std::vector<Column> columns = SlotRows(slots).columns();
  if constexpr (SavesItself<E>) columns.push_back({"state", Column::Type::real, slots.front().env.state_size()});
  return columns;
}

template <Environment E>
void save_slots(const std::vector<Slot<E>>& slots, std::span<void* const> columns) {
  SlotRows(slots).save(columns);
  if constexpr (SavesItself<E>) {
    const std::size_t width = slots.front().env.state_size();
    auto* rows = static_cast<double*>(columns.back());
    for (const Slot<E>& slot : slots) slot.env.save(std::span(rows, width)), rows += width;
  }
}

/// Loads a state, or throws and leaves all as they were: if it is none for these slots, or if an environment refuses to
/// load its own.
template <Environment E>
void restore_slots(std::vector<Slot<E>>& slots, std::span<const void* const> columns) {
  const SlotRows rows_of_slots(slots);
  rows_of_slots.check(columns);
  if constexpr (ChecksState<E>) {
    std::vector<Slot<E>> tried = slots;
    SlotRows(tried).restore(columns);
    for (std::size_t env = 0; env < tried.size(); ++env)
      if (const char* why = tried[env].env.state_problem())
        throw std::invalid_argument("the state of environment " + std::to_string(env) + " " + why);
  }
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
        SlotRows::refuse("state", env, std::string("cannot be loaded: ") + error.what());
      }
    }
  }
  rows_of_slots.restore(columns);
  for (Slot<E>& slot : slots) slot.seeded = slot.started = true;
}

}  // namespace penstock
