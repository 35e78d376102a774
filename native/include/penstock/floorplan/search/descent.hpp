/// Coordinate descent: one macro after the other takes the best place near its own.
#pragma once

#include "penstock/floorplan/search/forces.hpp"
#include "penstock/floorplan/search/proposals.hpp"

namespace penstock::floorplan {

struct DescentSettings {
  std::int64_t passes = 2;
  std::int32_t most_distance = 5;  ///< cells, Manhattan
  bool only_orientations = false;
  bool place_soft = true;     ///< force-directed, after each pass
  double least_gain = 0.001;  ///< share of the cost; a pass that gains less is the last
  std::uint64_t seed = 0;
  CostWeights weights;
};

/// A snapshot of macro and standard-cell positions, for undo.
class Remembered {
 public:
  explicit Remembered(const Layout& layout) {
    for (std::int32_t i = 0; i < std::int32_t(layout.x.size()); ++i)
      if (takes_room(layout.netlist(), i)) nodes_.push_back({i, {}, {}, 0});
    take(layout);
  }
  void take(const Layout& layout) {
    for (One& one : nodes_) {
      const auto i = std::size_t(one.node);
      one = {one.node, {layout.x[i], layout.y[i]}, layout.orientation[i], layout.placed[i]};
    }
  }
  void put_back(Layout& layout) const {
    for (const One& one : nodes_) {
      layout.move(one.node, one.centre);
      layout.placed[std::size_t(one.node)] = one.placed;
      if (layout.orientation[std::size_t(one.node)] != one.orientation) layout.turn(one.node, one.orientation);
    }
  }

 private:
  struct One {
    std::int32_t node;
    Point centre;
    Orientation orientation;
    std::uint8_t placed;
  };
  std::vector<One> nodes_;
};

/// Returns the cost at the start and after each pass.
inline std::vector<double> descend(Layout& layout, const Setting& setting, const Rules& rules,
                                   const DescentSettings& settings) {
  Rng rng(settings.seed);
  MacroMoves moves(layout, setting, rules, settings.weights);
  std::vector<double> curve{moves.cost()};
  for (std::int64_t pass = 0; pass < settings.passes; ++pass) {
    double cost = curve.back();
    std::vector<std::int32_t> order = moves.movable();
    shuffle(order, rng);
    for (const std::int32_t macro : order) {
      const MacroChange own = moves.as_is(macro);
      MacroChange best = own;
      const std::int32_t cell = setting.grid.cell_of(own.centre);
      const auto try_at = [&](Point centre) {
        for (const Orientation orientation : {Orientation::N, Orientation::FN, Orientation::S, Orientation::FS,
                                              Orientation::E, Orientation::FE, Orientation::W, Orientation::FW}) {
          const MacroChange change{macro, centre, orientation};
          if (!same_group(orientation, own.orientation)) continue;
          moves.make(std::span(&change, 1));
          if (moves.least_cost(cost) < cost)
            if (const double found = moves.cost(); found < cost) cost = found, best = change;
          moves.undo();
        }
      };
      try_at(own.centre);
      if (!settings.only_orientations && cell >= 0) {
        for_each_nearby(setting.grid, cell, settings.most_distance, [&](std::int32_t there) {
          const MacroChange change{macro, setting.grid.centre_of(there), own.orientation};
          if (moves.legal(std::span(&change, 1))) try_at(change.centre);
          return false;
        });
      }
      if (best.orientation != own.orientation || best.centre.x != own.centre.x || best.centre.y != own.centre.y)
        moves.make(std::span(&best, 1)), cost = moves.cost(), moves.keep();
    }
    if (settings.place_soft) {
      const Remembered before(layout);
      Forces(layout, setting.grid, default_schedule(setting.grid)).run();
      moves.rebuild();
      if (const double replaced = moves.cost(); replaced < cost) {
        cost = replaced;
      } else {
        before.put_back(layout);
        moves.rebuild();
      }
    }
    curve.push_back(cost);
    if (!(curve[curve.size() - 2] - cost >= settings.least_gain * curve[curve.size() - 2])) break;
  }
  return curve;
}

}  // namespace penstock::floorplan
