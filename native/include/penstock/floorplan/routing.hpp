/// The routes that nets are taken to have, and what they ask of the cells.
#pragma once

#include <array>

#include "penstock/floorplan/grid.hpp"
#include "penstock/floorplan/wirelength.hpp"

namespace penstock::floorplan {

/// Tracks that are asked for, a number a cell: `across` those from a cell to its right neighbour, `up` those to the one
/// above.
struct Demand {
  std::vector<double> both;  ///< those across, then those up

  void resize(std::int32_t cells) { both.assign(2 * std::size_t(cells), 0.0); }
  [[nodiscard]] std::span<double> across() { return std::span(both).first(both.size() / 2); }
  [[nodiscard]] std::span<double> up() { return std::span(both).last(both.size() / 2); }
  [[nodiscard]] std::span<const double> across() const { return std::span(both).first(both.size() / 2); }
  [[nodiscard]] std::span<const double> up() const { return std::span(both).last(both.size() / 2); }
};

/// Routes nets over a grid, adding `weight` to each cell border that is crossed.
class Router {
 public:
  Router(std::int32_t columns, Demand& demand)
      : columns_(columns), across_(demand.across().data()), up_(demand.up().data()) {}

  /// `cells` are different ones, the driver's first.
  void route(std::span<const Cell> cells, double weight) {
    if (cells.size() == 3) return three(cells, weight);
    for (std::size_t i = 1; i < cells.size(); ++i) two(cells[0], cells[i], weight);
  }

 private:
  std::int32_t columns_;
  double *across_, *up_;

  void across(std::int32_t row, std::int32_t from, std::int32_t to, double weight) {
    double* cells = across_ + std::ptrdiff_t(row) * columns_;
    for (std::int32_t column = std::min(from, to), end = std::max(from, to); column < end; ++column)
      cells[column] += weight;
  }
  void up(std::int32_t column, std::int32_t from, std::int32_t to, double weight) {
    double* cells = up_ + column;
    for (std::int32_t row = std::min(from, to), end = std::max(from, to); row < end; ++row)
      cells[std::ptrdiff_t(row) * columns_] += weight;
  }

  void two(Cell driver, Cell sink, double weight) {
    across(driver.row, driver.column, sink.column, weight);
    up(sink.column, driver.row, sink.row, weight);
  }

  void three(std::span<const Cell> cells, double weight) {
    std::array<Cell, 3> s{cells[0], cells[1], cells[2]};
    std::ranges::sort(s, {}, [](Cell c) { return std::pair(c.column, c.row); });
    auto [a, b, c] = s;
    if (a.column < b.column && b.column < c.column && std::min(a.row, c.row) < b.row &&
        b.row < std::max(a.row, c.row)) {
      across(a.row, a.column, b.column, weight), across(b.row, b.column, c.column, weight);
      up(b.column, a.row, b.row, weight), up(c.column, b.row, c.row, weight);
    } else if (b.column == c.column && a.column < b.column && a.row < std::min(b.row, c.row)) {
      across(a.row, a.column, b.column, weight);
      up(b.column, a.row, std::max(b.row, c.row), weight);
    } else if (b.row == c.row) {
      across(a.row, a.column, b.column, weight), across(b.row, b.column, c.column, weight);
      up(b.column, a.row, b.row, weight);
    } else {
      std::ranges::sort(s, {}, [](Cell cell) { return std::pair(cell.row, cell.column); });
      const auto [low, high] = std::minmax({s[0].column, s[1].column, s[2].column});
      across(s[1].row, low, high, weight);
      up(s[0].column, s[0].row, s[1].row, weight), up(s[2].column, s[1].row, s[2].row, weight);
    }
  }
};

/// Where a node is, and in which cell: side by side in memory, as nets meet them in any order.
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

/// Finds the cells of nets, one net after the other.
class NetCells {
 public:
  explicit NetCells(const Grid& grid) : columns_(grid.columns), seen_(std::size_t(grid.size()), 0) {}

  /// The different cells of a net's pins, the driver's first; none where the net is not routed: a pin lies outside the
  /// canvas, or the driver is not placed. Pins that are not placed are left out. Valid until the next call. `extent`
  /// grows by all pins.
  std::span<const Cell> of(const Netlist& netlist, const PinPlaces& places, std::int32_t driver, Extent& extent) {
    found_.clear();
    bool inside = places[driver].is_placed() && add(places[driver], extent);
    for (const std::int32_t sink : netlist.sinks_of(driver))
      if (places[sink].is_placed()) inside = add(places[sink], extent) && inside;
    for (const Cell cell : found_) seen_[index(cell)] = 0;
    if (!inside) found_.clear();
    return found_;
  }

 private:
  std::int32_t columns_;
  std::vector<std::uint8_t> seen_;
  std::vector<Cell> found_;

  [[nodiscard]] std::size_t index(Cell cell) const { return std::size_t(cell.row * columns_ + cell.column); }
  bool add(const PinPlace& place, Extent& extent) {
    extent.add(place.at);
    if (place.cell.column < 0) return false;
    if (!seen_[index(place.cell)]) seen_[index(place.cell)] = 1, found_.push_back(place.cell);
    return true;
  }
};

}  // namespace penstock::floorplan
