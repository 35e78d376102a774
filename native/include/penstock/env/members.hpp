/// The members of a plain struct as a table of names, kinds and places: functions without a template read and write
/// those of every struct, where one compiled for each type would take the compiler longer than all steps together.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>

#include "penstock/env/fields.hpp"

namespace penstock {

enum class FieldKind { real, boolean, integer };

template <FieldType T>
inline constexpr FieldKind kind_of = std::same_as<T, double> ? FieldKind::real
    : std::same_as<T, bool>                                  ? FieldKind::boolean
                                                             : FieldKind::integer;

/// The type of a member's elements, and how many an array has; 0 for a single value.
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

/// One member of a struct. `offset` is in bytes from the struct's beginning, `width` the elements of an array or 0.
struct Member {
  const char* name;
  FieldKind kind;
  std::size_t width;
  std::size_t offset;

  [[nodiscard]] constexpr std::size_t bytes() const {
    return (kind == FieldKind::boolean ? sizeof(bool) : sizeof(double)) * std::max<std::size_t>(width, 1);
  }
  [[nodiscard]] const void* in(const void* object) const { return static_cast<const std::byte*>(object) + offset; }
  [[nodiscard]] void* in(void* object) const { return static_cast<std::byte*>(object) + offset; }
};

/// The members of S, in the order written.
template <HasFields S>
inline constexpr auto member_table = std::apply(
    [](const auto&... field) {
      return std::array<Member, sizeof...(field)>{
          Member{field.name, kind_of<typename Element<typename std::remove_cvref_t<decltype(field)>::Type>::Type>,
                 Element<typename std::remove_cvref_t<decltype(field)>::Type>::width, field.offset}...};
    },
    S::fields());

/// Returns the single value at `value` as a double, exact for every integer that is used (up to 2**53).
inline double number_at(const void* value, FieldKind kind) {
  switch (kind) {
    case FieldKind::boolean: return *static_cast<const bool*>(value) ? 1.0 : 0.0;
    case FieldKind::integer: return static_cast<double>(*static_cast<const std::int64_t*>(value));
    case FieldKind::real: break;
  }
  return *static_cast<const double*>(value);
}

/// Sets the single value at `value` from a double, as a conversion of C++ does.
inline void put_number(void* value, FieldKind kind, double number) {
  switch (kind) {
    case FieldKind::boolean: *static_cast<bool*>(value) = static_cast<bool>(number); return;
    case FieldKind::integer: *static_cast<std::int64_t*>(value) = static_cast<std::int64_t>(number); return;
    case FieldKind::real: *static_cast<double*>(value) = number; return;
  }
}

/// Returns whether two structs of these members, all single values, have the same.
inline bool are_alike(const void* one, const void* other, std::span<const Member> members) {
  return std::all_of(members.begin(), members.end(), [&](const Member& member) {
    return member.kind == FieldKind::integer
        ? *static_cast<const std::int64_t*>(member.in(one)) == *static_cast<const std::int64_t*>(member.in(other))
        : number_at(member.in(one), member.kind) == number_at(member.in(other), member.kind);
  });
}

}  // namespace penstock
