/// The three costs of a layout, kept up to date while hard macros move.
#pragma once

#include "penstock/floorplan/congestion.hpp"
#include "penstock/floorplan/density.hpp"
#include "penstock/floorplan/wirelength.hpp"

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

/// Costs of a layout that changes a few macros at a time: lift them, change the layout, drop them. Sums are kept, so
/// that a change costs what its nets cost. What a change was can be taken back to the last bit.
class RunningCosts {
 public:
  RunningCosts(const Layout& layout, const Setting& setting)
      : layout_(layout),
        setting_(setting),
        places_(layout, setting.congestion_grid),
        net_cells_(setting.congestion_grid) {
    const Netlist& netlist = layout.netlist();
    std::vector<std::vector<std::int32_t>> nets(layout.x.size());
    first_cell_.push_back(0);
    for (std::size_t net = 0; net < netlist.nets.size(); ++net) {
      const std::int32_t driver = netlist.nets[net];
      const auto add = [&](std::int32_t node) {
        auto& list = nets[std::size_t(layout.owner[std::size_t(node)])];
        if (list.empty() || list.back() != std::int32_t(net)) list.push_back(std::int32_t(net));
      };
      add(driver);
      for (const std::int32_t sink : netlist.sinks_of(driver)) add(sink);
      first_cell_.push_back(first_cell_.back() + netlist.sinks_of(driver).size() + 1);
    }
    nets_of_ = std::move(nets);
    lengths_.resize(netlist.nets.size()), cell_count_.resize(netlist.nets.size());
    lifted_.assign(netlist.nets.size(), 0);
    cells_.resize(first_cell_.back());
    rebuild();
  }

  /// From scratch, as after a change that was not told.
  void rebuild() {
    now_.nets.resize(setting_.congestion_grid.size()), now_.macros.resize(setting_.congestion_grid.size());
    now_.length = 0;
    places_ = PinPlaces(layout_, setting_.congestion_grid);
    for (std::size_t net = 0; net < lengths_.size(); ++net) add_net(net);
    now_.density = cell_density(layout_, setting_.grid, setting_.blockages);
    for (const std::int32_t macro : layout_.netlist().macros)
      if (layout_.netlist().is_hard(macro) && layout_.placed[std::size_t(macro)])
        add_macro_demand(box_of(layout_, macro), setting_.congestion_grid, setting_.routes, now_.macros);
  }

  /// Takes macros out of the sums, with what they are tied to; then the layout may change, and `drop` puts them back.
  void lift(std::span<const std::int32_t> macros) {
    before_ = now_;
    kept_.clear(), kept_cells_.clear(), lifted_nets_.clear();
    for (const std::int32_t macro : macros) {
      add_room(macro, -1.0);
      for (const std::int32_t net : nets_of_[std::size_t(macro)])
        if (!lifted_[std::size_t(net)]) lifted_[std::size_t(net)] = 1, lifted_nets_.push_back(net);
    }
    Router router(setting_.congestion_grid.columns, now_.nets);
    for (const std::int32_t index : lifted_nets_) {
      const auto net = std::size_t(index);
      const double weight = layout_.netlist().net_weights[net];
      const auto cells = std::span<const Cell>(cells_).subspan(first_cell_[net], cell_count_[net]);
      kept_.push_back({lengths_[net], cell_count_[net]});
      kept_cells_.insert(kept_cells_.end(), cells.begin(), cells.end());
      now_.length -= lengths_[net] * weight;
      router.route(cells, -weight);
      lifted_[net] = 0;
    }
  }
  void drop(std::span<const std::int32_t> macros) {
    for (const std::int32_t macro : macros) add_room(macro, 1.0), places_.update_macro(layout_, macro);
    for (const std::int32_t net : lifted_nets_) add_net(std::size_t(net));
  }
  /// Undoes the last lift and drop; the caller has put the layout back.
  void take_back(std::span<const std::int32_t> macros) {
    std::swap(now_, before_);
    for (const std::int32_t macro : macros) places_.update_macro(layout_, macro);
    auto cells = kept_cells_.begin();
    for (std::size_t i = 0; i < lifted_nets_.size(); ++i) {
      const auto net = std::size_t(lifted_nets_[i]);
      lengths_[net] = kept_[i].length, cell_count_[net] = kept_[i].cells;
      std::copy_n(cells, kept_[i].cells, cells_.begin() + std::ptrdiff_t(first_cell_[net]));
      cells += std::ptrdiff_t(kept_[i].cells);
    }
  }

  [[nodiscard]] double length() const { return now_.length; }
  [[nodiscard]] const std::vector<double>& density() const { return now_.density; }
  [[nodiscard]] Costs costs() {
    congestion(now_.nets, now_.macros, setting_.congestion_grid, setting_.routes, setting_.smooth_range(), scratch_);
    return {wirelength_cost(now_.length, layout_.netlist(), setting_.grid), density_cost(now_.density, &dense_),
            congestion_cost(scratch_, &congested_)};
  }

 private:
  struct Sums {
    double length = 0;
    Demand nets, macros;
    std::vector<double> density;
  };
  struct Kept {
    double length;
    std::size_t cells;
  };

  const Layout& layout_;
  const Setting& setting_;
  std::vector<std::vector<std::int32_t>> nets_of_;  ///< of each owner, ascending
  Sums now_, before_;
  Demand scratch_;
  double dense_ = 0, congested_ = 0;  ///< what the largest values were likely to exceed
  std::vector<double> lengths_;
  std::vector<std::size_t> first_cell_, cell_count_;  ///< where a net's cells lie in cells_
  PinPlaces places_;
  NetCells net_cells_;
  std::vector<Cell> cells_, kept_cells_;
  std::vector<std::uint8_t> lifted_;
  std::vector<std::int32_t> lifted_nets_;
  std::vector<Kept> kept_;

  void add_net(std::size_t net) {
    const std::int32_t driver = layout_.netlist().nets[net];
    const double weight = layout_.netlist().net_weights[net];
    Extent extent;
    const std::span<const Cell> cells = net_cells_.of(layout_.netlist(), places_, driver, extent);
    lengths_[net] = extent.half_perimeter();
    now_.length += lengths_[net] * weight;
    cell_count_[net] = cells.size();
    std::ranges::copy(cells, cells_.begin() + std::ptrdiff_t(first_cell_[net]));
    Router(setting_.congestion_grid.columns, now_.nets).route(cells, weight);
  }
  void add_room(std::int32_t macro, double sign) {
    if (!layout_.placed[std::size_t(macro)]) return;
    const Box box = box_of(layout_, macro);
    add_density(now_.density, setting_.grid, box, sign);
    if (layout_.netlist().is_hard(macro))
      add_macro_demand(box, setting_.congestion_grid, setting_.routes, now_.macros, sign);
  }
};

}  // namespace penstock::floorplan
