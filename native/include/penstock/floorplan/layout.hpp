/// The layout of a block: positions, orientations and sizes of nodes, and which nodes are placed or fixed.
#pragma once

#include <memory>
#include <stdexcept>

#include "penstock/floorplan/netlist.hpp"

namespace penstock::floorplan {

struct Point {
  double x = 0, y = 0;
};

/// A pin's offset from its macro's centre, from the one for N.
constexpr Point rotated(Orientation orientation, double x, double y) {
  switch (orientation) {
    case Orientation::N:
      return {x, y};
    case Orientation::FN:
      return {-x, y};
    case Orientation::S:
      return {-x, -y};
    case Orientation::FS:
      return {x, -y};
    case Orientation::E:
      return {y, -x};
    case Orientation::FE:
      return {-y, -x};
    case Orientation::W:
      return {-y, x};
    case Orientation::FW:
      return {y, x};
  }
  return {x, y};
}

/// Every array has one entry a node. A pin has only an owner and an offset: it is where its macro is.
class Layout {
 public:
  explicit Layout(std::shared_ptr<const Netlist> netlist) : netlist_(std::move(netlist)) {
    const std::size_t count = netlist_->nodes.size();
    for (auto* values : {&x, &y, &width, &height, &dx, &dy}) values->resize(count);
    owner.resize(count), placed.resize(count), fixed.resize(count), orientation.resize(count);
    pins.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Node& node = netlist_->nodes[i];
      const bool pin = node.type == NodeType::macro_pin;
      x[i] = node.x, y[i] = node.y, width[i] = node.width, height[i] = node.height;
      placed[i] = node.positioned, orientation[i] = node.orientation;
      owner[i] = pin ? node.macro : static_cast<std::int32_t>(i);
      if (pin) pins[std::size_t(node.macro)].push_back(static_cast<std::int32_t>(i));
    }
    for (const std::int32_t macro : netlist_->macros) turn(macro, orientation[std::size_t(macro)]);
  }

  std::vector<double> x, y, width, height;
  std::vector<double> dx, dy;  ///< a pin's offset as its macro is turned; 0 for other nodes
  std::vector<std::int32_t> owner;
  std::vector<std::uint8_t> placed, fixed;  ///< flags of owners
  std::vector<Orientation> orientation;
  std::vector<std::vector<std::int32_t>> pins;  ///< pins of each macro, ascending

  [[nodiscard]] const Netlist& netlist() const { return *netlist_; }
  [[nodiscard]] Point position(std::int32_t node) const {
    const auto i = std::size_t(node), of = std::size_t(owner[i]);
    return {x[of] + dx[i], y[of] + dy[i]};
  }
  [[nodiscard]] bool is_placed(std::int32_t node) const { return placed[std::size_t(owner[std::size_t(node)])] != 0; }

  void move(std::int32_t node, Point centre) {
    x[std::size_t(node)] = centre.x, y[std::size_t(node)] = centre.y;
    placed[std::size_t(node)] = 1;
  }
  void turn(std::int32_t macro, Orientation to) {
    orientation[std::size_t(macro)] = to;
    for (const std::int32_t pin : pins[std::size_t(macro)]) {
      const Node& node = netlist_->nodes[std::size_t(pin)];
      const Point offset = rotated(to, node.x_offset, node.y_offset);
      dx[std::size_t(pin)] = offset.x, dy[std::size_t(pin)] = offset.y;
    }
  }

 private:
  std::shared_ptr<const Netlist> netlist_;
};

}  // namespace penstock::floorplan
