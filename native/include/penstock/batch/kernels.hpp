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

/// Adds a line for each member.
inline void add_layout(std::string& lines, const char* prefix, std::span<const Member> members) {
  for (const Member& member : members) {
    const char* type = member.kind == FieldKind::real ? "float64" : member.kind == FieldKind::boolean ? "bool" : "int64";
    lines += std::string(prefix) + member.name + " " + type + " " + std::to_string(member.width) + "\n";
  }
}

/// Describes E's columns, as BatchKernels::layout.
template <Batchable E>
std::string batch_layout() {
  std::string lines;
  add_layout(lines, "config.", member_table<typename E::Config>);
  add_layout(lines, "state.", member_table<typename E::State>);
  return lines;
}

}  // namespace penstock
