/// The length of a macro's nets, wherever its centre were put.
#pragma once

#include "penstock/floorplan/costs/pin_places.hpp"

namespace penstock::floorplan {

/// Weighted half perimeters of one macro's nets for its centre in each column and in each row: a half perimeter is a sum
/// of a part in x and a part in y, so columns + rows numbers say it of all cells. Pins that are not placed are left out.
class WireMap {
 public:
  WireMap(const Layout& layout, const Grid& grid)
      : layout_(layout), grid_(grid), nets_of_(nets_of_owners(layout)), columns_(std::size_t(grid.columns)),
        rows_(std::size_t(grid.rows)) {}

  /// Works the map of `macro` out, with all else where it is now.
  void find(std::int32_t macro) {
    ends_.clear();
    const Netlist& netlist = layout_.netlist();
    for (const std::int32_t net : nets_of_[std::size_t(macro)]) {
      Extent others, own;  // own: offsets of the macro's pins from its centre
      const auto add = [&](std::int32_t node) {
        if (layout_.owner[std::size_t(node)] == macro) own.add({layout_.dx[std::size_t(node)], layout_.dy[std::size_t(node)]});
        else if (layout_.is_placed(node)) others.add(layout_.position(node));
      };
      const std::int32_t driver = netlist.nets[std::size_t(net)];
      add(driver);
      for (const std::int32_t sink : netlist.sinks_of(driver)) add(sink);
      if (others.points > 0) ends_.push_back({netlist.net_weights[std::size_t(net)], others, own});
    }
    const Point now = layout_.position(macro);
    const double wide = grid_.cell_width(), high = grid_.cell_height();
    const double across = across_at(now.x), up = up_at(now.y);
    for (std::size_t i = 0; i < columns_.size(); ++i) columns_[i] = across_at((double(i) + 0.5) * wide) - across;
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i] = up_at((double(i) + 0.5) * high) - up;
  }
  /// Length in um, more (above 0) or less than where the macro is; the sum of a column's and a row's is that of a cell.
  [[nodiscard]] const std::vector<double>& columns() const { return columns_; }
  [[nodiscard]] const std::vector<double>& rows() const { return rows_; }

 private:
  struct Ends {
    double weight;
    Extent others, own;
  };

  const Layout& layout_;
  const Grid& grid_;
  std::vector<std::vector<std::int32_t>> nets_of_;
  std::vector<Ends> ends_;
  std::vector<double> columns_, rows_;

  [[nodiscard]] double across_at(double x) const {
    double sum = 0;
    for (const Ends& e : ends_)
      sum += e.weight * (std::max(e.others.x1, x + e.own.x1) - std::min(e.others.x0, x + e.own.x0));
    return sum;
  }
  [[nodiscard]] double up_at(double y) const {
    double sum = 0;
    for (const Ends& e : ends_)
      sum += e.weight * (std::max(e.others.y1, y + e.own.y1) - std::min(e.others.y0, y + e.own.y0));
    return sum;
  }
};

}  // namespace penstock::floorplan
