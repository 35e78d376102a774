/// Density: the share of each cell that nodes cover.
#pragma once

#include <span>

#include "penstock/floorplan/costs/grid.hpp"

namespace penstock::floorplan {

/// Adds a box's share, times `sign`, to the density of the cells that it overlaps.
inline void add_density(std::vector<double>& density, const Grid& grid, const Box& box, double sign = 1.0) {
  const double cell_area = grid.cell_width() * grid.cell_height();
  grid.for_each_shared(box,
                       [&](std::int32_t cell, double area) { density[std::size_t(cell)] += sign * area / cell_area; });
}

/// Returns whether a node occupies area.
inline bool takes_room(const Netlist& netlist, std::int32_t node) {
  const NodeType type = netlist.nodes[std::size_t(node)].type;
  return type == NodeType::macro || type == NodeType::stdcell;
}

inline std::vector<double> cell_density(const Layout& layout, const Grid& grid, std::span<const Blockage> blockages) {
  std::vector<double> density(std::size_t(grid.size()), 0.0);
  for (const Blockage& b : blockages) add_density(density, grid, {b.x0, b.y0, b.x1, b.y1}, b.rate);
  for (std::int32_t node = 0; node < std::int32_t(layout.x.size()); ++node)
    if (takes_room(layout.netlist(), node) && layout.placed[std::size_t(node)])
      add_density(density, grid, box_of(layout, node));
  return density;
}

/// Number of cells in the densest tenth.
inline std::int32_t densest_count(std::size_t cells) { return std::max(1, std::int32_t(0.1 * double(cells))); }

/// Half the mean of the densest tenth. The one published value of a grid of fewer than ten cells is its densest cell.
inline double density_cost(const std::vector<double>& density, Largest& largest) {
  if (density.size() < 10) return *std::max_element(density.begin(), density.end());
  return 0.5 * largest.mean(density, densest_count(density.size()));
}
inline double density_cost(const std::vector<double>& density) {
  Largest largest;
  return density_cost(density, largest);
}

}  // namespace penstock::floorplan
