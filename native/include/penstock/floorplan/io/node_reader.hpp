/// One node's attributes in a netlist's text, and what they say of it.
#pragma once

#include "penstock/floorplan/io/comments.hpp"

namespace penstock::floorplan {

/// A position in a file, for messages.
struct Place {
  std::string_view file;
  std::int64_t line;
};

struct Attribute {
  std::string key, text;
  double number = 0;
  bool is_text = false, is_number = false;
};

inline Attribute read_attribute(TextFormat& text) {
  Attribute out;
  text.expect('{', "after attr");
  while (!text.take('}')) {
    const std::string_view field = text.identifier("key, value or the closing '}' of the attribute");
    if (field == "key") {
      text.expect(':', "after key");
      out.key = text.string("the attribute's key in quotes");
    } else if (field == "value") {
      text.take(':');
      text.expect('{', "after value");
      while (!text.take('}')) {
        const std::string_view kind = text.identifier("f: a number, placeholder: \"text\", or the closing '}'");
        if (kind == "f" || kind == "i") {
          text.expect(':', "before the number");
          out.number = text.number("a finite number"), out.is_number = true;
        } else if (kind == "placeholder" || kind == "s") {
          text.expect(':', "before the text");
          out.text = text.string("a text in quotes"), out.is_text = true;
        } else {
          text.skip_value();
        }
        text.skip_separator();
      }
    } else {
      text.skip_value();
    }
    text.skip_separator();
  }
  return out;
}

/// Sets what the attributes say; throws where a node of that type cannot be so. A pin's macro is given back by name.
inline void fill(Node& node, const std::vector<Attribute>& attributes, const Place& place, std::string& macro_name) {
  const auto wrong = [&](const std::string& what) {
    refuse(place.file, place.line, "node '" + shown(node.name) + "': " + what);
  };
  bool typed = false, has_x = false, has_y = false, has_width = false, has_height = false;
  for (const Attribute& a : attributes) {
    const auto number = [&](double& out) {
      if (!a.is_number) wrong("found " + a.key + " without a number, expected value { f: ... }");
      out = a.number;
      return true;
    };
    const auto text = [&]() -> const std::string& {
      if (!a.is_text) wrong("found " + a.key + " without a text, expected value { placeholder: \"...\" }");
      return a.text;
    };
    if (a.key == "type") {
      std::string type = text();
      for (char& c : type) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      const auto found = std::ranges::find(type_names, type);
      if (found == type_names.end())
        wrong("found the type '" + shown(type) + "', expected port, macro, macro_pin or stdcell");
      node.type = static_cast<NodeType>(found - type_names.begin());
      typed = true;
    } else if (a.key == "x") has_x = number(node.x);
    else if (a.key == "y") has_y = number(node.y);
    else if (a.key == "width") has_width = number(node.width);
    else if (a.key == "height") has_height = number(node.height);
    else if (a.key == "x_offset") number(node.x_offset);
    else if (a.key == "y_offset") number(node.y_offset);
    else if (a.key == "weight") number(node.weight);
    else if (a.key == "side") node.side = text();
    else if (a.key == "macro_name") macro_name = text();
    else if (a.key == "orientation") {
      const auto orientation = orientation_of(text());
      if (!orientation) wrong("found the orientation '" + shown(a.text) + "', expected N, FN, S, FS, E, FE, W or FW");
      node.orientation = *orientation;
    }
  }
  if (!typed) wrong("found no type, expected port, macro, macro_pin or stdcell");
  if (node.weight < 0) wrong("found a weight below 0, expected at least 0");
  const bool sized = node.type == NodeType::macro || node.type == NodeType::stdcell;
  if (sized && (!has_width || !has_height || node.width < 0 || node.height < 0))
    wrong("found no width and height of at least 0, which a macro and a standard cell need");
  node.soft = node.type == NodeType::macro && node.name.starts_with("Grp");
  if (node.type != NodeType::macro || node.soft) node.orientation = Orientation::N;
  if (node.type == NodeType::macro_pin && macro_name.empty())
    wrong("found a pin without macro_name, expected the name of its macro");
  node.positioned = has_x && has_y && node.type != NodeType::macro_pin;
  if (!node.positioned) node.x = node.y = 0;
  if (!sized) node.width = node.height = 0;
}

}  // namespace penstock::floorplan
