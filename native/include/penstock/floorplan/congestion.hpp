/// How much of each cell's tracks nets and hard macros take.
#pragma once

#include "penstock/floorplan/routing.hpp"

namespace penstock::floorplan {

/// Tracks per um: what there is, and what hard macros take of it.
struct Routes {
  double across = 57.031, up = 56.818;
  double macro_across = 39.583, macro_up = 30.303;
};

/// Routes all nets; their weighted length in um, which comes with it.
inline double add_net_demand(const Layout& layout, const Grid& grid, Demand& demand) {
  const Netlist& netlist = layout.netlist();
  const PinPlaces places(layout, grid);
  Router router(grid.columns, demand);
  NetCells cells(grid);
  double length = 0;
  for (std::size_t net = 0; net < netlist.nets.size(); ++net) {
    Extent extent;
    router.route(cells.of(netlist, places, netlist.nets[net], extent), netlist.net_weights[net]);
    length += extent.half_perimeter() * netlist.net_weights[net];
  }
  return length;
}

/// What one placed hard macro takes, times `sign`. A macro that only partly covers its lowest or highest row leaves the
/// vertical tracks of the highest one alone, and likewise with columns.
inline void add_macro_demand(const Box& box, const Grid& grid, const Routes& routes, Demand& demand,
                             double sign = 1.0) {
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
  for (std::int32_t row = up.first; row <= up.last; ++row) {
    const double high = shared(box.y0, box.y1, gh, row);
    if (high <= 0) continue;
    for (std::int32_t column = across.first; column <= across.last; ++column) {
      const double wide = shared(box.x0, box.x1, gw, column);
      if (wide <= 0) continue;
      const auto cell = std::size_t(row * grid.columns + column);
      if (!(spare_top && row == up.last)) demand.up()[cell] += sign * wide * routes.macro_up;
      if (!(spare_right && column == across.last)) demand.across()[cell] += sign * high * routes.macro_across;
    }
  }
}

/// Shares each cell's demand evenly with those within `range` of it: `up` along its row, `across` along its column.
inline Demand smoothed(const Demand& demand, const Grid& grid, std::int32_t range) {
  Demand out;
  out.resize(grid.size());
  for (std::int32_t row = 0; row < grid.rows; ++row) {
    for (std::int32_t column = 0; column < grid.columns; ++column) {
      const auto cell = std::size_t(row * grid.columns + column);
      const std::int32_t left = std::max(0, column - range), right = std::min(grid.columns - 1, column + range);
      const std::int32_t low = std::max(0, row - range), high = std::min(grid.rows - 1, row + range);
      const double up = demand.up()[cell] / (right - left + 1), across = demand.across()[cell] / (high - low + 1);
      for (std::int32_t c = left; c <= right; ++c) out.up()[std::size_t(row * grid.columns + c)] += up;
      for (std::int32_t r = low; r <= high; ++r) out.across()[std::size_t(r * grid.columns + column)] += across;
    }
  }
  return out;
}

/// Shares of the cells' tracks from the two parts of the demand; only the nets' is smoothed.
inline void congestion(const Demand& nets, const Demand& macros, const Grid& grid, const Routes& routes,
                       std::int32_t range, Demand& out) {
  const double tracks_across = grid.cell_height() * routes.across, tracks_up = grid.cell_width() * routes.up;
  out = nets;
  for (double& value : out.across()) value /= tracks_across;
  for (double& value : out.up()) value /= tracks_up;
  if (range > 0) out = smoothed(out, grid, range);
  for (std::size_t cell = 0; cell < out.up().size(); ++cell) {
    out.across()[cell] += macros.across()[cell] / tracks_across;
    out.up()[cell] += macros.up()[cell] / tracks_up;
  }
}

/// The same of a layout; the nets' weighted length too, where it is asked for.
inline Demand congestion(const Layout& layout, const Grid& grid, const Routes& routes, std::int32_t range,
                         double* length = nullptr) {
  Demand nets, macros;
  nets.resize(grid.size()), macros.resize(grid.size());
  const double found = add_net_demand(layout, grid, nets);
  if (length != nullptr) *length = found;
  for (const std::int32_t macro : layout.netlist().macros)
    if (layout.netlist().is_hard(macro) && layout.placed[std::size_t(macro)])
      add_macro_demand(box_of(layout, macro), grid, routes, macros);
  Demand out;
  congestion(nets, macros, grid, routes, range, out);
  return out;
}

/// Mean of the worst twentieth of all values, across and up together.
inline double congestion_cost(const Demand& congestion, double* guess = nullptr) {
  const std::vector<double>& all = congestion.both;
  return mean_of_largest(all, std::max(1, static_cast<std::int32_t>(std::floor(0.05 * double(all.size())))), guess);
}

}  // namespace penstock::floorplan
