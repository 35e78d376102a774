/// The kernels of a batch as a table of C functions, the same whichever compiler made them.
#pragma once

#include <string>

#include "penstock/batch/stepping.hpp"

namespace penstock {

/// All pointers but `layout` are of the batch's device. Functions return nullptr, or a message that is valid until the
/// thread's next call. On a GPU they queue work on `stream` (a cudaStream_t) and return at once: errors of environments
/// come later, as CUDA's. `actions` are int64 [environments, ...] or float32 [environments, *action].
struct BatchKernels {
  /// One line for each member, "config.gravity float64 0" or "state.board int64 42": its name, type and length, 0 for a
  /// single number; those of the configuration first, in the order of their columns.
  const char* layout;
  const char* (*step)(const BatchArrays* batch, const void* actions, const BatchStep* out, void* stream);
  const char* (*step_round)(const BatchArrays* batch, const void* actions, const BatchRow* out, void* stream);
  /// Begins the next episode of the environments in `chosen` [environments], and observes those.
  const char* (*begin)(const BatchArrays* batch, const bool* chosen, void* observation, void* stream);
  const char* (*observe)(const BatchArrays* batch, void* observation, void* stream);
};

template <class T>
inline constexpr const char* element_name = std::same_as<T, double> ? "float64" : std::same_as<T, bool> ? "bool" : "int64";
template <class T, std::size_t Size>
inline constexpr const char* element_name<std::array<T, Size>> = element_name<T>;

/// Describes E's columns, as BatchKernels::layout.
template <Batchable E>
std::string batch_layout() {
  std::string lines;
  const auto add = [&]<HasFields S>(std::type_identity<S>, const char* prefix) {
    for_each_field<S>([&](const auto& field) {
      using T = typename std::remove_cvref_t<decltype(field)>::Type;
      const std::size_t length = is_field_array<T> ? scalars_of<T> : 0;
      lines += std::string(prefix) + field.name + " " + element_name<T> + " " + std::to_string(length) + "\n";
    });
  };
  add(std::type_identity<typename E::Config>{}, "config.");
  add(std::type_identity<typename E::State>{}, "state.");
  return lines;
}

}  // namespace penstock
