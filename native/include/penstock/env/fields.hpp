/// Names for the members of a plain struct, so that the framework can configure, save and restore it.
///
///     struct State { double x, y; PENSTOCK_FIELDS(State, x, y) };
///
/// A member is a double, a bool or a std::int64_t; in a state also a std::array of them. A member that is left out is
/// neither configured nor saved: list them all. PENSTOCK_LIBRARY refuses a struct that lists too few.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace penstock {

template <class T>
concept FieldType = std::same_as<T, double> || std::same_as<T, bool> || std::same_as<T, std::int64_t>;

template <class T>
inline constexpr bool is_field_array = false;
template <FieldType T, std::size_t Size>
inline constexpr bool is_field_array<std::array<T, Size>> = true;

template <class Struct, class T>
struct Field {
  static_assert(FieldType<T> || is_field_array<T>,
                "penstock: PENSTOCK_FIELDS: a member is a double, a bool or a std::int64_t; in a state also a std::array "
                "of them");
  using Type = T;
  const char* name;
  T Struct::*member;
  std::size_t offset;  ///< in bytes from the struct's beginning
};

template <class S>
concept HasFields = std::is_trivially_copyable_v<S> && std::is_default_constructible_v<S> && requires { S::fields(); };

/// Calls `visit(field)` for every field of S, in the order written.
template <HasFields S, class Visit>
constexpr void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, S::fields());
}

}  // namespace penstock

#define PENSTOCK_PARENS ()
#define PENSTOCK_EXPAND(...) PENSTOCK_EXPAND3(PENSTOCK_EXPAND3(PENSTOCK_EXPAND3(__VA_ARGS__)))
#define PENSTOCK_EXPAND3(...) PENSTOCK_EXPAND2(PENSTOCK_EXPAND2(PENSTOCK_EXPAND2(__VA_ARGS__)))
#define PENSTOCK_EXPAND2(...) PENSTOCK_EXPAND1(PENSTOCK_EXPAND1(PENSTOCK_EXPAND1(__VA_ARGS__)))
#define PENSTOCK_EXPAND1(...) PENSTOCK_EXPAND0(PENSTOCK_EXPAND0(PENSTOCK_EXPAND0(__VA_ARGS__)))
#define PENSTOCK_EXPAND0(...) __VA_ARGS__
#define PENSTOCK_FIELD(Struct, name) ::penstock::Field<Struct, decltype(Struct::name)>{#name, &Struct::name, offsetof(Struct, name)}
#define PENSTOCK_FIELD_LIST(Struct, name, ...) \
  PENSTOCK_FIELD(Struct, name) __VA_OPT__(, PENSTOCK_FIELD_LIST_AGAIN PENSTOCK_PARENS(Struct, __VA_ARGS__))
#define PENSTOCK_FIELD_LIST_AGAIN() PENSTOCK_FIELD_LIST

/// Declares `Struct::fields()`; up to 80 members, or none.
#define PENSTOCK_FIELDS(Struct, ...)                                                          \
  static constexpr auto fields() {                                                            \
    return std::tuple{__VA_OPT__(PENSTOCK_EXPAND(PENSTOCK_FIELD_LIST(Struct, __VA_ARGS__)))}; \
  }
