/// Placement files (.plc): where nodes are, and the settings under which a placement was made.
#pragma once

#include "penstock/floorplan/io/comments.hpp"
#include "penstock/floorplan/layout.hpp"

namespace penstock::floorplan {

struct PlacedNode {
  std::int32_t node;
  double x, y;
  std::optional<Orientation> orientation;
  bool fixed;
};

struct PlacementFile {
  Comments comments;
  std::vector<PlacedNode> nodes;
};

/// Throws ReadError, with the file and the line, where the text is no placement of this netlist. Settings stand in the
/// comments in front; what users wrote there, below "User comments:", and comments between nodes are never settings.
inline PlacementFile read_plc(std::string_view text, std::string_view file, const Netlist& netlist) {
  PlacementFile out;
  CommentReader comments(file, out.comments);
  std::vector<std::uint8_t> listed(netlist.nodes.size(), 0);
  std::int64_t line = 0;
  bool header = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view all = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    const auto words = words_of(all, " \t\r\v\f");
    if (words.empty()) continue;
    if (words[0].starts_with('#')) {
      const std::string_view comment = all.substr(all.find('#') + 1);
      if (std::ranges::equal(words_of(comment, " \t\r\v\f"), std::array<std::string_view, 2>{"User", "comments:"}))
        header = false;
      if (header) comments.read(comment, line);
      continue;
    }
    header = false;
    const auto wrong = [&](const std::string& expected) {
      refuse(file, line, "found '" + shown(all) + "', expected " + expected);
    };
    if (words.size() != 5) wrong("five values: index x y orientation fixed");
    PlacedNode node{};
    const auto [stop, error] = std::from_chars(words[0].data(), words[0].data() + words[0].size(), node.node);
    if (error != std::errc() || stop != words[0].data() + words[0].size() || node.node < 0 ||
        node.node >= std::int32_t(netlist.nodes.size()))
      wrong("a node's index from 0 to " + std::to_string(std::int64_t(netlist.nodes.size()) - 1) +
            "; is this a placement of another netlist?");
    if (netlist.is_pin(node.node)) wrong("the index of a port, macro or standard cell; this is a pin's");
    if (!parse_number(words[1], node.x) || !parse_number(words[2], node.y))
      wrong("two finite numbers behind the index");
    if (words[3] != "-") {
      node.orientation = orientation_of(words[3]);
      if (!node.orientation) wrong("an orientation: N, FN, S, FS, E, FE, W, FW or -");
    }
    if (words[4] != "0" && words[4] != "1") wrong("0 or 1 at the end, for free or fixed");
    node.fixed = words[4] == "1";
    if (listed[std::size_t(node.node)]++) wrong("each node once");
    out.nodes.push_back(node);
  }
  return out;
}

/// Puts the listed nodes where the file says; others stay as they are.
inline void restore(Layout& layout, const PlacementFile& file) {
  for (const PlacedNode& node : file.nodes) {
    layout.move(node.node, {node.x, node.y});
    layout.fixed[std::size_t(node.node)] = node.fixed;
    if (node.orientation && layout.netlist().is_macro(node.node)) layout.turn(node.node, *node.orientation);
  }
}

/// Returns the lines of the placed nodes, six significant digits a coordinate.
inline std::string plc_lines(const Layout& layout) {
  std::string out;
  char buffer[96];
  for (std::int32_t i = 0; i < std::int32_t(layout.x.size()); ++i) {
    if (layout.netlist().is_pin(i) || !layout.placed[std::size_t(i)]) continue;
    const std::string orientation(
        layout.netlist().is_macro(i) ? orientation_names[std::size_t(layout.orientation[std::size_t(i)])] : "-");
    std::snprintf(buffer, sizeof buffer, "%d %g %g %s %d\n", i, layout.x[std::size_t(i)], layout.y[std::size_t(i)],
                  orientation.c_str(), int(layout.fixed[std::size_t(i)]));
    out += buffer;
  }
  return out;
}

}  // namespace penstock::floorplan
