/// A block's netlist as its file gives it: nodes, what drives what, and the settings in the file's comments.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::floorplan {

enum class NodeType : std::uint8_t { port, macro, macro_pin, stdcell };
inline constexpr std::array<std::string_view, 4> type_names{"PORT", "MACRO", "MACRO_PIN", "STDCELL"};

enum class Orientation : std::uint8_t { N, FN, S, FS, E, FE, W, FW };
inline constexpr std::array<std::string_view, 8> orientation_names{"N", "FN", "S", "FS", "E", "FE", "W", "FW"};

inline std::optional<Orientation> orientation_of(std::string_view name) {
  for (std::size_t i = 0; i < orientation_names.size(); ++i)
    if (orientation_names[i] == name) return static_cast<Orientation>(i);
  return std::nullopt;
}

/// Returns whether a macro may be turned from the first orientation to the second: N, FN, S and FS go together, and the
/// rest.
constexpr bool same_group(Orientation a, Orientation b) {
  return (a >= Orientation::E) == (b >= Orientation::E);
}

/// A rectangle that macros keep out of, in um; `rate` is the share of its area that counts as used.
struct Blockage {
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0, rate = 0;
};

/// Settings in the comments of a netlist or a placement. Lengths are in um, routes in tracks per um.
struct Comments {
  std::optional<std::array<std::int64_t, 2>> grid, congestion_grid;   ///< columns, rows
  std::optional<std::array<double, 2>> canvas, routes, macro_routes;  ///< width, height; horizontal, vertical
  std::optional<std::array<double, 2>> spacing;                       ///< between hard macros; ours alone
  std::optional<double> smoothing, overlap_threshold;
  bool square_soft_macros = false;  ///< ours alone
  std::optional<std::string> block, project;
  std::vector<Blockage> blockages;
};

/// Numbers were rounded to float32 when they were read. Positions are centres, offsets are from the macro's centre.
struct Node {
  std::string name;
  NodeType type = NodeType::port;
  bool soft = false;        ///< a macro that is a cluster of standard cells
  bool positioned = false;  ///< the file gives x and y
  Orientation orientation = Orientation::N;
  std::int32_t macro = -1;  ///< the owner of a pin
  double width = 0, height = 0, x = 0, y = 0, x_offset = 0, y_offset = 0, weight = 1;
  std::string side;
};

struct Netlist {
  std::vector<Node> nodes;
  std::vector<std::int32_t> first_sink;  ///< [nodes + 1]: where the sinks of a node begin in `sinks`
  std::vector<std::int32_t> sinks;       ///< in file order; a sink that is named twice counts twice
  std::vector<std::int32_t> nets;        ///< drivers: every node that has sinks, ascending
  std::vector<double> net_weights;       ///< [nets]
  std::vector<std::int32_t> macros;      ///< hard and soft, ascending
  std::unordered_map<std::string_view, std::int32_t> index;
  double total_weight = 0;
  Comments comments;

  Netlist() = default;
  Netlist(const Netlist&) = delete;  // the index refers to the nodes' own names
  Netlist& operator=(const Netlist&) = delete;

  [[nodiscard]] std::span<const std::int32_t> sinks_of(std::int32_t node) const {
    const auto begin = static_cast<std::size_t>(first_sink[std::size_t(node)]);
    return {sinks.data() + begin, static_cast<std::size_t>(first_sink[std::size_t(node) + 1]) - begin};
  }
  [[nodiscard]] bool is_macro(std::int32_t node) const { return nodes[std::size_t(node)].type == NodeType::macro; }
  [[nodiscard]] bool is_hard(std::int32_t node) const { return is_macro(node) && !nodes[std::size_t(node)].soft; }
  [[nodiscard]] bool is_pin(std::int32_t node) const { return nodes[std::size_t(node)].type == NodeType::macro_pin; }
};

}  // namespace penstock::floorplan
