/// The length of a macro's nets, wherever its centre were put.
#pragma once

#include "penstock/floorplan/costs/pin_places.hpp"

namespace penstock::floorplan {

/// Weighted half perimeters of one macro's nets for its centre in each column and in each row: a half perimeter is a sum
/// of a part in x and a part in y, so columns + rows numbers say it of all cells. Pins that are not placed are left out.
class WireMap {
 public:
  WireMap(const Layout& layout, const Grid& grid)
      : layout_(layout), nets_of_(nets_of_owners(layout)), columns_(std::size_t(grid.columns)),
        rows_(std::size_t(grid.rows)) {
    for (std::int32_t i = 0; i < grid.columns; ++i) x_.push_back((i + 0.5) * grid.cell_width());
    for (std::int32_t i = 0; i < grid.rows; ++i) y_.push_back((i + 0.5) * grid.cell_height());
  }

  /// Works the map of `macro` out, with all else where it is now.
  void find(std::int32_t macro) {
    across_.clear(), up_.clear();
    const Netlist& netlist = layout_.netlist();
    for (const std::int32_t net : nets_of_[std::size_t(macro)]) {
      Extent others, own;  // own: offsets of the macro's pins from its centre
      const auto add = [&](std::int32_t node) {
        const auto pin = std::size_t(node), owner = std::size_t(layout_.owner[pin]);
        const Point offset{layout_.dx[pin], layout_.dy[pin]};
        if (std::int32_t(owner) == macro) own.add(offset);
        else if (layout_.placed[owner]) others.add({layout_.x[owner] + offset.x, layout_.y[owner] + offset.y});
      };
      const std::int32_t driver = netlist.nets[std::size_t(net)];
      add(driver);
      for (const std::int32_t sink : netlist.sinks_of(driver)) add(sink);
      if (others.points == 0) continue;
      const double weight = netlist.net_weights[std::size_t(net)];
      across_.push_back({weight, others.x0, others.x1, own.x0, own.x1});
      up_.push_back({weight, others.y0, others.y1, own.y0, own.y1});
    }
    const Point now = layout_.position(macro);
    add_up(across_, x_, now.x, columns_), add_up(up_, y_, now.y, rows_);
  }
  /// Length in um, more (above 0) or less than where the macro is; the sum of a column's and a row's is that of a cell.
  [[nodiscard]] const std::vector<double>& columns() const { return columns_; }
  [[nodiscard]] const std::vector<double>& rows() const { return rows_; }

 private:
  /// Ends of a net along one axis: those of all other pins, and offsets of the macro's own.
  struct Ends {
    double weight, low, high, own_low, own_high;

    [[nodiscard]] double length(double at) const {
      return weight * (std::max(high, at + own_high) - std::min(low, at + own_low));
    }
  };

  const Layout& layout_;
  std::vector<std::vector<std::int32_t>> nets_of_;
  std::vector<Ends> across_, up_;
  std::vector<double> x_, y_;  ///< centres of columns and rows
  std::vector<double> columns_, rows_;

  static void add_up(const std::vector<Ends>& nets, const std::vector<double>& places, double now,
                     std::vector<double>& out) {
    double length = 0;
    for (const Ends& net : nets) length += net.length(now);
    std::ranges::fill(out, 0.0);
    const double* const at = places.data();
    double* const sums = out.data();
    for (const Ends net : nets)
      for (std::size_t i = 0; i < places.size(); ++i) sums[i] += net.length(at[i]);
    for (double& sum : out) sum -= length;
  }
};

}  // namespace penstock::floorplan
