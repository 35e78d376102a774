/// The three costs of a layout, kept up to date while macros move.
#pragma once

#include "penstock/floorplan/costs/congestion_bound.hpp"
#include "penstock/floorplan/costs/costs.hpp"
#include "penstock/floorplan/costs/journal.hpp"

namespace penstock::floorplan {

/// Costs of a layout that changes a few macros at a time: lift them, change the layout, drop them. Then `least_costs`
/// is cheap, `costs` is exact, and `take_back` undoes the change to the last bit. Cells of the nets that changed are
/// found where the bound without them is not enough, and nets are routed for `costs` alone.
class RunningCosts {
 public:
  RunningCosts(const Layout& layout, const Setting& setting)
      : layout_(layout),
        setting_(setting), nets_of_(nets_of_owners(layout)),
        smoothing_(setting.congestion_grid, setting.routes, setting.smooth_range()),
        bound_(setting.congestion_grid, setting.routes),
        places_(layout, setting.congestion_grid),
        net_cells_(layout.netlist(), setting.congestion_grid) {
    const Netlist& netlist = layout.netlist();
    std::size_t room = 0;
    for (std::size_t net = 0; net < netlist.nets.size(); ++net) {
      nets_.push_back({.first = room});
      room += netlist.sinks_of(netlist.nets[net]).size() + 1;
    }
    cells_.resize(room), other_cells_.resize(room);
    lifted_.assign(nets_.size(), 0);
    rerouted_.assign(std::size_t(setting.congestion_grid.rows + setting.congestion_grid.columns), 0);
    rebuild();
  }

  /// Recomputes everything, as after a change that was not reported.
  void rebuild() {
    tracks_of_nets_ = tracks_of_macros_ = Lines(setting_.congestion_grid);
    length_ = 0, changed_ = left_out_ = celled_ = routed_ = false, lifted_nets_.clear();
    places_ = PinPlaces(layout_, setting_.congestion_grid);
    for (std::size_t net = 0; net < nets_.size(); ++net) {
      nets_[net].now = found(net, cells_);
      length_ += nets_[net].now.length * weight(net);
      add_tracks(cells_of(net), weight(net));
    }
    density_ = cell_density(layout_, setting_.grid, setting_.blockages);
    for (const std::int32_t macro : layout_.netlist().macros)
      if (layout_.netlist().is_hard(macro) && layout_.placed[std::size_t(macro)])
        add_tracks(box_of(layout_, macro), 1.0);
    journal_.keep();
    rerouted_lines_.clear(), std::ranges::fill(rerouted_, 0), smoothing_.all_changed();
    static_cast<void>(costs()), remember_worst();
  }

  /// Takes macros out of the sums, with what they are tied to; then the layout may change, and `drop` puts them
  /// back. Changes that were reported before stand.
  void lift(std::span<const std::int32_t> macros) {
    if (changed_) route_nets(), bound_.keep();
    journal_.keep(), bound_.begin();
    changed_ = left_out_ = celled_ = routed_ = false, length_before_ = length_;
    lifted_nets_.clear(), boxes_.clear(), kept_places_.clear(), rerouted_lines_.clear();
    for (const std::int32_t macro : macros) {
      add_box(macro, -1.0);
      for (const std::int32_t pin : layout_.pins[std::size_t(macro)]) kept_places_.push_back(places_[pin]);
      for (const std::int32_t index : nets_of_[std::size_t(macro)]) {
        const auto net = std::size_t(index);
        if (std::exchange(lifted_[net], std::uint8_t{1})) continue;
        lifted_nets_.push_back(net);
        length_ -= nets_[net].now.length * weight(net);
      }
    }
  }
  void drop(std::span<const std::int32_t> macros) {
    for (const std::int32_t macro : macros) add_box(macro, 1.0), places_.update_macro(layout_, macro);
    for (const std::size_t net : lifted_nets_) {
      nets_[net].other.length = net_length(places_, layout_.netlist(), layout_.netlist().nets[net]);
      length_ += nets_[net].other.length * weight(net);
      lifted_[net] = 0;
    }
    changed_ = true;
  }
  /// Undoes the last lift and drop; the caller has put the layout back.
  void take_back(std::span<const std::int32_t> macros) {
    journal_.take_back(), length_ = length_before_;
    auto place = kept_places_.begin();
    for (const std::int32_t macro : macros) {
      places_.update(layout_, macro);
      for (const std::int32_t pin : layout_.pins[std::size_t(macro)]) places_[pin] = *place++;
    }
    if (routed_) {
      for (const std::size_t net : lifted_nets_) exchange(net);
      for (const std::size_t line : rerouted_lines_) smoothing_.changed(line);
    }
    changed_ = left_out_ = celled_ = routed_ = false;
  }

  [[nodiscard]] Costs costs() {
    if (changed_) route_nets();
    smoothing_.all(tracks_of_nets_, tracks_of_macros_, congestion_);
    Costs found = but_congestion();
    found.congestion = congestion_cost(congestion_, worst_);
    return found;
  }
  /// Returns a lower bound of `costs`, which costs much less to compute; a lower one where that is enough.
  template <class IsEnough>
  [[nodiscard]] Costs least_costs(IsEnough&& is_enough) {
    Costs found = but_congestion();
    if (changed_) {
      leave_out();
      found.congestion = bound_.least();
      if (!celled_ && is_enough(found)) return found;
      find_cells();
    }
    found.congestion = bound_.least();
    return found;
  }
  /// Estimates what one more box adds to the density cost: as if the densest cells stayed those of the last `costs`.
  [[nodiscard]] double density_added(const Box& box) const {
    if (density_.size() < 10) return 0;
    const double cell_area = setting_.grid.cell_width() * setting_.grid.cell_height(), least = densest_.least();
    double sum = 0;
    setting_.grid.for_each_shared(box, [&](std::int32_t cell, double area) {
      const double before = density_[std::size_t(cell)], after = before + area / cell_area;
      sum += std::max(0.0, after - std::max(before, least));
    });
    return 0.5 * sum / double(densest_count(density_.size()));
  }
  /// Call after `costs` if the layout is kept: the next layouts are likely to be worst in the same cells.
  void remember_worst() {
    bound_.take(congestion_, worst_.least(), smoothing_);
    changed_ = false;
  }

 private:
  struct Found {
    double length = 0;
    std::size_t cells = 0;
    double part = 0;          ///< share of the bound's sum, without its weight
    std::uint32_t taken = 0;  ///< index of the bound
  };
  struct Net {
    std::size_t first;     ///< index of its first cell; there is room for one a pin
    Found now{}, other{};  ///< `other`: after the reported change; where it is routed, before it
  };

  const Layout& layout_;
  const Setting& setting_;
  std::vector<std::vector<std::int32_t>> nets_of_;  ///< nets of each owner, ascending
  Smoothing smoothing_;
  CongestionBound bound_;
  PinPlaces places_;
  NetCells net_cells_;
  std::vector<Net> nets_;
  std::vector<Cell> cells_, other_cells_;
  double length_ = 0, length_before_ = 0;
  std::vector<double> density_;
  Lines tracks_of_nets_, tracks_of_macros_, congestion_;
  Largest densest_, worst_;
  Journal journal_;
  bool changed_ = false;                                     ///< a change was dropped, and is not taken back
  bool left_out_ = false, celled_ = false, routed_ = false;  ///< its nets are out of the bound; in it again; routed
  std::vector<std::size_t> lifted_nets_, rerouted_lines_;
  std::vector<std::uint8_t> lifted_, rerouted_;
  std::vector<PinPlace> kept_places_;
  std::vector<std::pair<Box, double>> boxes_;

  [[nodiscard]] double weight(std::size_t net) const { return layout_.netlist().net_weights[net]; }
  [[nodiscard]] std::span<const Cell> cells_of(std::size_t net) const {
    return {cells_.data() + nets_[net].first, nets_[net].now.cells};
  }
  [[nodiscard]] std::span<const Cell> other_cells_of(std::size_t net) const {
    return {other_cells_.data() + nets_[net].first, nets_[net].other.cells};
  }
  [[nodiscard]] Costs but_congestion() {
    return {wirelength_cost(length_, layout_.netlist(), setting_.grid), density_cost(density_, densest_), 0};
  }
  /// Takes the changed nets out of the bound: no wire lowers it.
  void leave_out() {
    if (std::exchange(left_out_, true)) return;
    for (const std::size_t net : lifted_nets_) bound_.add(-weight(net) * part(nets_[net].now, cells_of(net)));
  }
  /// Puts the changed nets into the bound again, where they are now.
  void find_cells() {
    if (std::exchange(celled_, true)) return;
    leave_out();
    for (const std::size_t net : lifted_nets_) {
      nets_[net].other = found(net, other_cells_);
      bound_.add(weight(net) * part(nets_[net].other, other_cells_of(net)));
    }
  }
  Found found(std::size_t net, std::vector<Cell>& cells) {
    Extent extent;
    const std::size_t count = net_cells_.of(places_, net, cells.data() + nets_[net].first, extent);
    return {extent.half_perimeter(), count};
  }
  double part(Found& found, std::span<const Cell> cells) {
    if (found.taken != bound_.taken()) found.part = bound_.of_net(cells), found.taken = bound_.taken();
    return found.part;
  }
  void exchange(std::size_t net) {
    Net& n = nets_[net];
    Cell* const cells = cells_.data() + n.first;
    std::swap_ranges(cells, cells + std::max(n.now.cells, n.other.cells), other_cells_.data() + n.first);
    std::swap(n.now, n.other);
  }
  void route_nets() {
    if (routed_) return;
    find_cells();
    for (const auto& [box, sign] : boxes_) add_tracks(box, sign);
    for (const std::size_t net : lifted_nets_) {
      if (!std::ranges::equal(cells_of(net), other_cells_of(net))) {
        add_tracks(cells_of(net), -weight(net));
        add_tracks(other_cells_of(net), weight(net));
      }
      exchange(net);
    }
    for (const std::size_t line : rerouted_lines_) smoothing_.changed(line), rerouted_[line] = 0;
    routed_ = true;
  }
  void add_tracks(std::span<const Cell> cells, double weight) {
    const auto add = [&](std::size_t line, std::size_t index, double more) {
      journal_.add(tracks_of_nets_.both[index], more);
      if (!std::exchange(rerouted_[line], std::uint8_t{1})) rerouted_lines_.push_back(line);
    };
    route(cells, Steps(tracks_of_nets_, weight, add));
  }
  void add_tracks(const Box& box, double sign) {
    for_each_macro_track(
        box, setting_.congestion_grid, setting_.routes, tracks_of_macros_,
        [&](std::size_t index, double tracks) { journal_.add(tracks_of_macros_.both[index], sign * tracks); });
  }
  void add_box(std::int32_t macro, double sign) {
    const Box box = box_of(layout_, macro);
    const double cell_area = setting_.grid.cell_width() * setting_.grid.cell_height();
    setting_.grid.for_each_shared(box, [&](std::int32_t cell, double area) {
      journal_.add(density_[std::size_t(cell)], sign * area / cell_area);
    });
    if (!layout_.netlist().is_hard(macro)) return;  // soft macros take no tracks
    boxes_.emplace_back(box, sign);
    bound_.add(sign * bound_.of_macro(box));
  }
};

}  // namespace penstock::floorplan
