/// Routing congestion: the share of each cell's tracks that nets and hard macros take.
#pragma once

#include "penstock/floorplan/costs/pin_places.hpp"
#include "penstock/floorplan/costs/smoothing.hpp"

namespace penstock::floorplan {

/// Routes all nets, as steps; their weighted length in um, which comes with it.
inline double add_nets(const Layout& layout, const Grid& grid, Lines& steps) {
  const Netlist& netlist = layout.netlist();
  const PinPlaces places(layout, grid);
  NetCells net_cells(netlist, grid);
  std::vector<Cell> cells;
  double length = 0;
  for (std::size_t net = 0; net < netlist.nets.size(); ++net) {
    Extent extent;
    const double weight = netlist.net_weights[net];
    const auto add = [&](std::size_t, std::size_t index, double more) { steps.both[index] += more; };
    cells.resize(netlist.sinks_of(netlist.nets[net]).size() + 1);
    const std::size_t found = net_cells.of(places, net, cells.data(), extent);
    route(std::span<const Cell>(cells).first(found), Steps(steps, weight, add));
    length += extent.half_perimeter() * weight;
  }
  return length;
}

/// Calls `take(index of a number of `lines`, tracks)` for what one placed hard macro takes. A macro that only partly
/// covers its lowest or highest row leaves the vertical tracks of the highest one alone, and likewise with columns.
template <class Take>
void for_each_macro_track(const Box& box, const Grid& grid, const Routes& routes, const Lines& lines, Take&& take) {
  constexpr double slack = 1e-5;
  const double gw = grid.cell_width(), gh = grid.cell_height();
  const Span across = grid.columns_of(box), up = grid.rows_of(box);
  if (across.empty() || up.empty()) return;
  const auto part = [](double low, double high, double cell, Span s) {
    return std::abs(shared(low, high, cell, s.first) - cell) > slack ||
           std::abs(shared(low, high, cell, s.last) - cell) > slack;
  };
  const bool spare_top = up.first != up.last && part(box.y0, box.y1, gh, up);
  const bool spare_right = across.first != across.last && part(box.x0, box.x1, gw, across);
  const auto touches = [](double low, double high, double cell, std::int32_t i) {
    return shared(low, high, cell, i) > 0;
  };
  for (std::int32_t row = up.first; row <= up.last; ++row) {
    const double high = shared(box.y0, box.y1, gh, row);
    if (high <= 0) continue;
    for (std::int32_t column = across.first; column <= across.last - spare_right; ++column)
      if (touches(box.x0, box.x1, gw, column)) take(lines.across(row, column), high * routes.macro_across);
  }
  for (std::int32_t column = across.first; column <= across.last; ++column) {
    const double wide = shared(box.x0, box.x1, gw, column);
    if (wide <= 0) continue;
    for (std::int32_t row = up.first; row <= up.last - spare_top; ++row)
      if (touches(box.y0, box.y1, gh, row)) take(lines.up(row, column), wide * routes.macro_up);
  }
}

/// Returns a layout's congestion, and on request the nets' weighted length.
inline Lines congestion(const Layout& layout, const Grid& grid, const Routes& routes, std::int32_t range,
                        double* length = nullptr) {
  Lines nets(grid), macros(grid), out;
  const double found = add_nets(layout, grid, nets);
  if (length != nullptr) *length = found;
  for (const std::int32_t macro : layout.netlist().macros)
    if (layout.netlist().is_hard(macro) && layout.placed[std::size_t(macro)])
      for_each_macro_track(box_of(layout, macro), grid, routes, macros,
                           [&](std::size_t index, double tracks) { macros.both[index] += tracks; });
  Smoothing(grid, routes, range).all(nets, macros, out);
  return out;
}

/// Returns the number of values that count: the worst twentieth of all, horizontal and vertical together.
inline std::int32_t worst_count(const Lines& congestion) {
  return std::max(1, static_cast<std::int32_t>(std::floor(0.05 * double(congestion.both.size()))));
}

/// Returns the mean of the worst cells.
inline double congestion_cost(const Lines& congestion, Largest& largest) {
  return largest.mean(congestion.both, worst_count(congestion));
}
inline double congestion_cost(const Lines& congestion) {
  Largest largest;
  return congestion_cost(congestion, largest);
}

}  // namespace penstock::floorplan
