/// The three costs of a layout.
#pragma once

#include "penstock/floorplan/costs/congestion.hpp"
#include "penstock/floorplan/costs/density.hpp"
#include "penstock/floorplan/costs/wirelength.hpp"

namespace penstock::floorplan {

/// Under which costs are computed.
struct Setting {
  Grid grid, congestion_grid;
  Routes routes;
  double smoothing = 0;
  std::vector<Blockage> blockages;

  [[nodiscard]] std::int32_t smooth_range() const {
    return static_cast<std::int32_t>(std::floor(std::min(smoothing, double(1 << 20))));
  }
};

struct CostWeights {
  double wirelength = 1.0, density = 1.0, congestion = 0.5;
};

struct Costs {
  double wirelength, density, congestion;
  [[nodiscard]] double weighted(const CostWeights& w) const {
    return w.wirelength * wirelength + w.density * density + w.congestion * congestion;
  }
};

inline double wirelength_cost(double length, const Netlist& netlist, const Grid& canvas) {
  return netlist.total_weight > 0 ? length / ((canvas.width + canvas.height) * netlist.total_weight) : 0.0;
}

}  // namespace penstock::floorplan
