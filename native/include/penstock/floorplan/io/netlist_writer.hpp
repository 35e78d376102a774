/// Writes a netlist as text that reads back as the same nodes.
#pragma once

#include <charconv>

#include "penstock/floorplan/netlist.hpp"

namespace penstock::floorplan {

class NetlistWriter {
 public:
  static std::string write(const Netlist& netlist) {
    NetlistWriter writer;
    for (std::int32_t i = 0; i < std::int32_t(netlist.nodes.size()); ++i) writer.node(netlist, i);
    return std::move(writer.out_);
  }

 private:
  std::string out_;

  void node(const Netlist& netlist, std::int32_t i) {
    const Node& node = netlist.nodes[std::size_t(i)];
    out_ += "node {\n  name: " + quoted(node.name) + "\n";
    for (const std::int32_t sink : netlist.sinks_of(i))
      out_ += "  input: " + quoted(netlist.nodes[std::size_t(sink)].name) + "\n";
    std::string type(type_names[std::size_t(node.type)]);
    text("type", type);
    if (node.type == NodeType::macro_pin) {
      text("macro_name", netlist.nodes[std::size_t(node.macro)].name);
      number("x_offset", node.x_offset), number("y_offset", node.y_offset);
    } else if (node.type != NodeType::port) {
      number("width", node.width), number("height", node.height);
    }
    if (!node.side.empty()) text("side", node.side);
    if (node.weight != 1) number("weight", node.weight);
    if (netlist.is_hard(i)) text("orientation", std::string(orientation_names[std::size_t(node.orientation)]));
    if (node.positioned) number("x", node.x), number("y", node.y);
    out_ += "}\n";
  }

  void text(const char* key, const std::string& value) { attribute(key, "placeholder: " + quoted(value)); }
  void number(const char* key, double value) {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, static_cast<float>(value)).ptr;
    attribute(key, "f: " + std::string(buffer, end));
  }
  void attribute(const char* key, const std::string& value) {
    out_ += std::string("  attr {\n    key: \"") + key + "\"\n    value {\n      " + value + "\n    }\n  }\n";
  }
  static std::string quoted(const std::string& value) {
    std::string out = "\"";
    for (const char c : value) {
      if (c == '\n') out += "\\n";
      else if (c == '\t') out += "\\t";
      else if (c == '"' || c == '\\') (out += '\\') += c;
      else out += c;
    }
    return out + "\"";
  }
};

}  // namespace penstock::floorplan
