/// Adjacency of macros and port groups: the nets that join them.
#pragma once

#include "penstock/floorplan/costs/grid.hpp"

namespace penstock::floorplan {

struct Adjacency {
  std::size_t size = 0;                  ///< macros, and port clusters behind them
  std::vector<double> weights;           ///< [size * size], symmetric, 0 on the diagonal
  std::vector<std::int32_t> port_cells;  ///< cell of each port cluster, ascending
};

/// Each net joins its driver's macro with each sink's, not the sinks among themselves. With `grid`, the placed ports of
/// one cell are a cluster, which counts as a macro.
inline Adjacency adjacency(const Layout& layout, const Grid* grid) {
  const Netlist& netlist = layout.netlist();
  Adjacency out;
  std::vector<std::int32_t> row(netlist.nodes.size(), -1);
  for (std::size_t i = 0; i < netlist.macros.size(); ++i) row[std::size_t(netlist.macros[i])] = std::int32_t(i);
  if (grid != nullptr) {
    std::vector<std::int32_t> cluster(std::size_t(grid->size()), -1), cell_of(netlist.nodes.size(), -1);
    for (std::size_t i = 0; i < netlist.nodes.size(); ++i) {
      if (netlist.nodes[i].type != NodeType::port || !layout.placed[i]) continue;
      const double column = std::clamp(std::floor(layout.x[i] / grid->cell_width()), 0.0, double(grid->columns - 1));
      const double line = std::clamp(std::floor(layout.y[i] / grid->cell_height()), 0.0, double(grid->rows - 1));
      cell_of[i] = std::int32_t(line) * grid->columns + std::int32_t(column);
      cluster[std::size_t(cell_of[i])] = 0;
    }
    for (std::int32_t cell = 0; cell < grid->size(); ++cell) {
      if (cluster[std::size_t(cell)] < 0) continue;
      cluster[std::size_t(cell)] = std::int32_t(netlist.macros.size() + out.port_cells.size());
      out.port_cells.push_back(cell);
    }
    for (std::size_t i = 0; i < cell_of.size(); ++i)
      if (cell_of[i] >= 0) row[i] = cluster[std::size_t(cell_of[i])];
  }
  out.size = netlist.macros.size() + out.port_cells.size();
  out.weights.assign(out.size * out.size, 0.0);
  for (std::size_t net = 0; net < netlist.nets.size(); ++net) {
    const std::int32_t from = row[std::size_t(layout.owner[std::size_t(netlist.nets[net])])];
    if (from < 0) continue;
    for (const std::int32_t sink : netlist.sinks_of(netlist.nets[net])) {
      const std::int32_t to = row[std::size_t(layout.owner[std::size_t(sink)])];
      if (to < 0 || to == from) continue;
      out.weights[std::size_t(from) * out.size + std::size_t(to)] += netlist.net_weights[net];
      out.weights[std::size_t(to) * out.size + std::size_t(from)] += netlist.net_weights[net];
    }
  }
  return out;
}

}  // namespace penstock::floorplan
