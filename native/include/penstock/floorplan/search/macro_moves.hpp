/// Changes of macros that are tried, judged, and kept or taken back.
#pragma once

#include "penstock/floorplan/search/legality.hpp"
#include "penstock/floorplan/costs/running_costs.hpp"

namespace penstock::floorplan {

struct MacroChange {
  std::int32_t macro;
  Point centre;
  Orientation orientation;
};

/// A layout with its running costs, of which whole groups of macros move at once. Positions of hard macros are judged by
/// geometry alone (canvas, hard macros, blockages), as while soft macros are not placed: they give way afterwards. A soft
/// macro may be anywhere on the canvas; where it is crowded, costs say so.
class MacroMoves {
 public:
  MacroMoves(Layout& layout, const Setting& setting, const Rules& rules, const CostWeights& weights)
      : layout_(layout), setting_(setting), rules_(rules), weights_(weights), costs_(layout, setting) {
    for (const std::int32_t macro : layout.netlist().macros) {
      if (!layout.placed[std::size_t(macro)]) continue;
      const bool hard = layout.netlist().is_hard(macro);
      if (hard) placed_.push_back(macro);
      if (!layout.fixed[std::size_t(macro)]) (hard ? movable_ : movable_soft_).push_back(macro);
    }
  }

  /// Hard macros that are placed and free.
  [[nodiscard]] const std::vector<std::int32_t>& movable() const { return movable_; }
  [[nodiscard]] const std::vector<std::int32_t>& movable_soft() const { return movable_soft_; }
  /// Estimates what one more box adds to the density's part of the cost.
  [[nodiscard]] double density_added(const Box& box) const { return weights_.density * costs_.density_added(box); }
  [[nodiscard]] double cost() { return costs_.costs().weighted(weights_); }
  /// Call after a change of the layout that was made elsewhere.
  void rebuild() { costs_.rebuild(); }

  /// Returns whether a change's macros would all be legal once all have moved.
  bool legal(std::span<const MacroChange> changes) {
    before_.clear();
    for (const MacroChange& change : changes) {
      before_.push_back(as_is(change.macro));
      layout_.move(change.macro, change.centre);  // a turn changes no side
    }
    const bool fine = std::ranges::all_of(changes, [&](const MacroChange& change) { return fits(change.macro); });
    for (const MacroChange& change : before_) layout_.move(change.macro, change.centre);
    return fine;
  }
  /// Returns a lower bound of `cost` in a fraction of its time: a move whose bound is too high needs no cost. It may be
  /// lower, and take less time, where it is more than `enough` all the same.
  [[nodiscard]] double least_cost(double enough) {
    if (weights_.congestion < 0) return -std::numeric_limits<double>::infinity();
    return costs_.least_costs([&](const Costs& found) { return found.weighted(weights_) > enough; })
        .weighted(weights_);
  }
  /// Call after `cost` if the layout is kept: the next layouts are likely to be worst in the same cells.
  void keep() { costs_.remember_worst(); }
  /// Makes a change; `undo` takes it back, to the last bit.
  void make(std::span<const MacroChange> changes) {
    moved_.clear();
    for (const MacroChange& change : changes) moved_.push_back(change.macro);
    costs_.lift(moved_);
    before_.clear();
    for (const MacroChange& change : changes) {
      before_.push_back(as_is(change.macro));
      apply(change);
    }
    costs_.drop(moved_);
  }
  void undo() {
    for (const MacroChange& change : before_) apply(change);
    costs_.take_back(moved_);
  }
  [[nodiscard]] MacroChange as_is(std::int32_t macro) const {
    return {macro, layout_.position(macro), layout_.orientation[std::size_t(macro)]};
  }

 private:
  Layout& layout_;
  const Setting& setting_;
  const Rules& rules_;
  CostWeights weights_;
  RunningCosts costs_;
  std::vector<std::int32_t> placed_, movable_, movable_soft_, moved_;
  std::vector<MacroChange> before_;

  void apply(const MacroChange& change) {
    layout_.move(change.macro, change.centre);
    if (layout_.orientation[std::size_t(change.macro)] != change.orientation)
      layout_.turn(change.macro, change.orientation);
  }

  [[nodiscard]] bool fits(std::int32_t macro) const {
    const Box box = box_of(layout_, macro);
    if (box.x0 < -edge_slack || box.y0 < -edge_slack || box.x1 > setting_.grid.width + edge_slack ||
        box.y1 > setting_.grid.height + edge_slack)
      return false;
    if (!layout_.netlist().is_hard(macro)) return true;
    for (const std::int32_t other : placed_)
      if (other != macro && overlap(box, box_of(layout_, other), from_macros(rules_))) return false;
    for (const Blockage& b : setting_.blockages)
      if (overlap(box, {b.x0, b.y0, b.x1, b.y1}, from_blockages)) return false;
    return true;
  }
};

}  // namespace penstock::floorplan
