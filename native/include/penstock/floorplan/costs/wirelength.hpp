/// Half-perimeter wirelength.
#pragma once

#include <limits>
#include <span>

#include "penstock/floorplan/layout.hpp"

namespace penstock::floorplan {

/// A bounding box that grows.
struct Extent {
  double x0 = std::numeric_limits<double>::infinity(), x1 = -x0, y0 = x0, y1 = -x0;
  std::int32_t points = 0;

  void add(Point p) {
    x0 = std::min(x0, p.x), x1 = std::max(x1, p.x);
    y0 = std::min(y0, p.y), y1 = std::max(y1, p.y);
    ++points;
  }
  [[nodiscard]] double half_perimeter() const { return points < 2 ? 0.0 : (x1 - x0) + (y1 - y0); }
};

/// Returns the unweighted length of one net in um. Nodes that are not placed are left out.
inline double net_length(const Layout& layout, std::int32_t driver) {
  Extent extent;
  if (layout.is_placed(driver)) extent.add(layout.position(driver));
  for (const std::int32_t sink : layout.netlist().sinks_of(driver))
    if (layout.is_placed(sink)) extent.add(layout.position(sink));
  return extent.half_perimeter();
}

/// Returns the weighted sum over all nets, in um.
inline double wirelength(const Layout& layout) {
  const Netlist& netlist = layout.netlist();
  double sum = 0;
  for (std::size_t net = 0; net < netlist.nets.size(); ++net)
    sum += net_length(layout, netlist.nets[net]) * netlist.net_weights[net];
  return sum;
}

/// Nodes joined by hand, in no other cost than their own.
struct FakeNet {
  double weight = 1;
  std::vector<std::int32_t> nodes;
};

/// Mean weighted length of fake nets over the canvas's half perimeter; 0 without any.
inline double fake_net_cost(const Layout& layout, std::span<const FakeNet> nets, double half_perimeter) {
  double sum = 0, weights = 0;
  for (const FakeNet& net : nets) {
    Extent extent;
    for (const std::int32_t node : net.nodes)
      if (layout.is_placed(node)) extent.add(layout.position(node));
    sum += net.weight * extent.half_perimeter();
    weights += net.weight;
  }
  return weights > 0 ? sum / weights / half_perimeter : 0.0;
}

}  // namespace penstock::floorplan
