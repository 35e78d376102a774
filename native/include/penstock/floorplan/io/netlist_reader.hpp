/// Reads a netlist: one or several texts, in order, as one.
#pragma once

#include <memory>
#include <utility>

#include "penstock/floorplan/io/node_reader.hpp"

namespace penstock::floorplan {

struct SourceText {
  std::string text;
  std::string file;  ///< for messages
};

class NetlistReader {
 public:
  /// Throws ReadError, with the file and the line, on anything that is no netlist.
  static std::unique_ptr<Netlist> read(const std::vector<SourceText>& sources) {
    NetlistReader reader;
    for (const SourceText& source : sources) reader.read_one(source);
    reader.resolve();
    return std::move(reader.out_);
  }

 private:
  std::unique_ptr<Netlist> out_ = std::make_unique<Netlist>();
  std::vector<Place> places_;
  std::vector<std::vector<std::string>> inputs_;
  std::vector<std::string> macro_names_;

  void read_one(const SourceText& source) {
    CommentReader comments(source.file, out_->comments);
    TextFormat text(source.text, source.file,
                    [&](std::string_view comment, std::int64_t line) { comments.read(comment, line); });
    while (!text.at_end()) {
      if (text.identifier("a block: node { ... }") == "node") {
        text.take(':');
        read_node(text);
      } else {
        text.skip_value();
      }
      text.skip_separator();
    }
  }

  void read_node(TextFormat& text) {
    const Place place{text.file(), text.line()};
    text.expect('{', "after node");
    Node node;
    std::vector<std::string> inputs;
    std::vector<Attribute> attributes;
    while (!text.take('}')) {
      const std::string_view field = text.identifier("name, input, attr or the closing '}' of the node");
      if (field == "name") {
        text.expect(':', "after name");
        node.name = text.string("the node's name in quotes");
      } else if (field == "input") {
        text.expect(':', "after input");
        if (text.take('[')) {
          while (!text.take(']')) inputs.push_back(text.string("a node's name in quotes")), text.take(',');
        } else {
          inputs.push_back(text.string("a node's name in quotes"));
        }
      } else if (field == "attr") {
        text.take(':');
        attributes.push_back(read_attribute(text));
      } else {
        text.skip_value();
      }
      text.skip_separator();
    }
    if (node.name.empty()) refuse(place.file, place.line, "found a node without a name, expected name: \"...\" in it");
    if (node.name == "__metadata__") return;  // it says how the file was made, and has no index
    std::string macro_name;
    fill(node, attributes, place, macro_name);
    out_->nodes.push_back(std::move(node));
    inputs_.push_back(std::move(inputs));
    macro_names_.push_back(std::move(macro_name));
    places_.push_back(place);
  }

  void resolve() {
    Netlist& out = *out_;
    const auto count = static_cast<std::int32_t>(out.nodes.size());
    out.index.reserve(out.nodes.size());
    for (std::int32_t i = 0; i < count; ++i) {
      const Node& node = out.nodes[std::size_t(i)];
      const auto [other, added] = out.index.emplace(node.name, i);
      const Place& place = places_[std::size_t(i)];
      if (!added)
        refuse(place.file, place.line,
               "found a second node called '" + shown(node.name) + "', expected each name once; the first is at " +
                   std::string(places_[std::size_t(other->second)].file) + ":" +
                   std::to_string(places_[std::size_t(other->second)].line));
      if (node.type == NodeType::macro) out.macros.push_back(i);
    }
    out.first_sink.push_back(0);
    for (std::int32_t i = 0; i < count; ++i) {
      Node& node = out.nodes[std::size_t(i)];
      if (node.type == NodeType::macro_pin) {
        const auto found = out.index.find(macro_names_[std::size_t(i)]);
        if (found == out.index.end() || !out.is_macro(found->second))
          refuse(places_[std::size_t(i)].file, places_[std::size_t(i)].line,
                 "pin '" + shown(node.name) + "': found macro_name '" + shown(macro_names_[std::size_t(i)]) +
                     "', expected the name of a macro in the netlist");
        node.macro = found->second;
      }
      for (const std::string& input : inputs_[std::size_t(i)])
        if (const auto found = out.index.find(input); found != out.index.end()) out.sinks.push_back(found->second);
      out.first_sink.push_back(static_cast<std::int32_t>(out.sinks.size()));
      if (out.first_sink[std::size_t(i)] < out.first_sink.back()) {
        out.nets.push_back(i);
        out.net_weights.push_back(node.weight);
        out.total_weight += node.weight;
      }
    }
  }
};

}  // namespace penstock::floorplan
