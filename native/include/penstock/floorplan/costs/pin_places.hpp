/// Pin positions, and the cells that each net passes through.
#pragma once

#include <utility>

#include "penstock/floorplan/costs/grid.hpp"
#include "penstock/floorplan/costs/wirelength.hpp"

namespace penstock::floorplan {

/// Position and cell of a node, adjacent in memory because nets visit nodes in any order.
struct PinPlace {
  static constexpr std::int32_t outside = -1, unplaced = -2;
  Point at;
  Cell cell{unplaced, unplaced};  ///< column `outside` beyond the canvas

  [[nodiscard]] bool is_placed() const { return cell.column != unplaced; }
};

/// The places of all nodes, which do not follow the layout by themselves.
class PinPlaces {
 public:
  PinPlaces(const Layout& layout, const Grid& grid)
      : grid_(grid), wide_(grid.cell_width()), high_(grid.cell_height()), places_(layout.x.size()) {
    for (std::int32_t node = 0; node < std::int32_t(places_.size()); ++node) update(layout, node);
  }
  const PinPlace& operator[](std::int32_t node) const { return places_[std::size_t(node)]; }
  PinPlace& operator[](std::int32_t node) { return places_[std::size_t(node)]; }

  void update(const Layout& layout, std::int32_t node) {
    PinPlace& place = places_[std::size_t(node)];
    if (!layout.is_placed(node)) {
      place = {};
      return;
    }
    place.at = layout.position(node);
    place.cell = grid_.contains(place.at) ? grid_.locate(place.at, wide_, high_) : Cell{PinPlace::outside, 0};
  }
  void update_macro(const Layout& layout, std::int32_t macro) {
    update(layout, macro);
    for (const std::int32_t pin : layout.pins[std::size_t(macro)]) update(layout, pin);
  }

 private:
  Grid grid_;
  double wide_, high_;
  std::vector<PinPlace> places_;
};

/// Returns the unweighted length of one net in um, as `net_length` of the layout.
inline double net_length(const PinPlaces& places, const Netlist& netlist, std::int32_t driver) {
  Extent extent;
  const auto add = [&](const PinPlace& place) {
    if (place.is_placed()) extent.add(place.at);
  };
  add(places[driver]);
  for (const std::int32_t sink : netlist.sinks_of(driver)) add(places[sink]);
  return extent.half_perimeter();
}

/// The nets of each node that owns pins, ascending.
inline std::vector<std::vector<std::int32_t>> nets_of_owners(const Layout& layout) {
  const Netlist& netlist = layout.netlist();
  std::vector<std::vector<std::int32_t>> nets(layout.x.size());
  for (std::int32_t net = 0; net < std::int32_t(netlist.nets.size()); ++net) {
    const auto add = [&](std::int32_t node) {
      auto& list = nets[std::size_t(layout.owner[std::size_t(node)])];
      if (list.empty() || list.back() != net) list.push_back(net);
    };
    const std::int32_t driver = netlist.nets[std::size_t(net)];
    add(driver);
    for (const std::int32_t sink : netlist.sinks_of(driver)) add(sink);
  }
  return nets;
}

/// Finds the cells of nets, one net after the other.
class NetCells {
 public:
  NetCells(const Netlist& netlist, const Grid& grid)
      : netlist_(netlist), columns_(grid.columns), seen_(std::size_t(grid.size()), 0) {}

  /// Writes the different cells of a net's pins, the driver's first, and says how many they are; none where the net is
  /// not routed: a pin is outside the canvas, or the driver is not placed. Pins that are not placed are left out.
  /// `out` has room for as many cells as the net has pins. `extent` grows by all pins.
  std::size_t of(const PinPlaces& places, std::size_t net, Cell* out, Extent& extent) {
    const std::int32_t driver = netlist_.nets[net];
    const std::span<const std::int32_t> sinks = netlist_.sinks_of(driver);
    // Few cells are compared with each other, many are marked.
    const auto compared = [&](Cell c, std::size_t found) { return std::find(out, out + found, c) == out + found; };
    return sinks.size() < 12 ? of(places, driver, sinks, out, extent, compared)
                             : marked(places, driver, sinks, out, extent);
  }

 private:
  const Netlist& netlist_;
  std::int32_t columns_;
  std::vector<std::uint8_t> seen_;

  template <class IsNew>
  static std::size_t of(const PinPlaces& places, std::int32_t driver, std::span<const std::int32_t> sinks, Cell* out,
                        Extent& extent, IsNew&& is_new) {
    std::size_t found = 0;
    bool inside = places[driver].is_placed();
    const auto add = [&](const PinPlace& place) {
      if (!place.is_placed()) return;
      extent.add(place.at);
      if (place.cell.column < 0) inside = false;
      else if (is_new(place.cell, found)) out[found++] = place.cell;
    };
    add(places[driver]);
    for (const std::int32_t sink : sinks) add(places[sink]);
    return inside ? found : 0;
  }
  std::size_t marked(const PinPlaces& places, std::int32_t driver, std::span<const std::int32_t> sinks, Cell* out,
                     Extent& extent) {
    std::size_t most = 0;
    const auto index = [&](Cell cell) { return std::size_t(cell.row * columns_ + cell.column); };
    const std::size_t cells = of(places, driver, sinks, out, extent, [&](Cell cell, std::size_t found) {
      std::uint8_t& seen = seen_[index(cell)];
      most = found + !seen;
      return !std::exchange(seen, std::uint8_t{1});
    });
    for (const Cell cell : std::span(out, most)) seen_[index(cell)] = 0;
    return cells;
  }
};

}  // namespace penstock::floorplan
