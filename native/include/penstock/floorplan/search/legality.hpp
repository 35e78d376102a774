/// Legality: the cells that a node may be placed on, and legalisation.
#pragma once

#include <numeric>

#include "penstock/floorplan/costs/density.hpp"

namespace penstock::floorplan {

/// Limits of positions; lengths in um.
struct Rules {
  double overlap_threshold = 0;               ///< lengths that two hard macros may share
  double spacing_across = 0, spacing_up = 0;  ///< between hard macros
  bool hard_over_cells = false;               ///< hard macros need not obey the limit of density
};

inline constexpr double edge_slack = 1e-5;  ///< um that a node may stand out of the canvas, and the least overlap
inline constexpr double most_density = 1.001;

/// The lengths that a hard macro may share with something that stands in its way, and the gap that both need.
struct Clearance {
  double allowed = edge_slack;
  double across = 0, up = 0;
};
inline Clearance from_macros(const Rules& rules) {
  return {std::max(rules.overlap_threshold, edge_slack), rules.spacing_across, rules.spacing_up};
}
/// The threshold and the spacing are of hard macros among themselves: a blockage has neither.
inline constexpr Clearance from_blockages{};

/// Returns whether two intervals overlap by more than is allowed.
inline bool overlap(double low, double high, double other_low, double other_high, double spacing, double allowed) {
  return std::min(high, other_high) - std::max(low, other_low) + spacing > allowed;
}
inline bool overlap(const Box& a, const Box& b, const Clearance& c) {
  return overlap(a.x0, a.x1, b.x0, b.x1, c.across, c.allowed) && overlap(a.y0, a.y1, b.y0, b.y1, c.up, c.allowed);
}

/// Finds the cells that can take a node; `density` is that of the placed nodes and blockages now.
class Legality {
 public:
  Legality(const Layout& layout, const Grid& grid, const Rules& rules, std::span<const Blockage> blockages,
           const std::vector<double>& density)
      : layout_(layout), grid_(grid), rules_(rules), blockages_(blockages), density_(density) {}

  /// One entry a cell, 1 where the node may be. While it is placed it stands in its own way.
  [[nodiscard]] std::vector<std::int32_t> mask(std::int32_t node) const {
    std::vector<std::int32_t> out(std::size_t(grid_.size()));
    mask(node, out);
    return out;
  }
  template <class T>
  void mask(std::int32_t node, std::span<T> out) const {
    const double width = layout_.width[std::size_t(node)], height = layout_.height[std::size_t(node)];
    const bool hard = layout_.netlist().is_hard(node);
    begin(out, width, height);
    if (hard) {
      for (const std::int32_t other : layout_.netlist().macros)
        if (layout_.netlist().is_hard(other) && layout_.placed[std::size_t(other)])
          block(out, box_of(layout_, other), width, height, from_macros(rules_));
      for (const Blockage& b : blockages_) block(out, {b.x0, b.y0, b.x1, b.y1}, width, height, from_blockages);
    }
    if (!hard || !rules_.hard_over_cells) limit(out, width, height);
  }
  void mask(std::int32_t node, std::vector<std::int32_t>& out) const { mask(node, std::span<std::int32_t>(out)); }

 private:
  const Layout& layout_;
  const Grid& grid_;
  const Rules& rules_;
  std::span<const Blockage> blockages_;
  const std::vector<double>& density_;

  [[nodiscard]] Box at(std::int32_t column, std::int32_t row, double width, double height) const {
    return box_around(grid_.centre_of(row * grid_.columns + column), width, height);
  }

  template <class T>
  void begin(std::span<T> out, double width, double height) const {
    for (std::int32_t row = 0; row < grid_.rows; ++row) {
      for (std::int32_t column = 0; column < grid_.columns; ++column) {
        const Box box = at(column, row, width, height);
        out[std::size_t(row * grid_.columns + column)] = box.x0 >= -edge_slack && box.y0 >= -edge_slack &&
                                                         box.x1 <= grid_.width + edge_slack &&
                                                         box.y1 <= grid_.height + edge_slack;
      }
    }
  }

  /// Clears the cells where the node would overlap a box. An overlap is one in x and one in y, so the cells are a
  /// rectangle.
  template <class T>
  void block(std::span<T> out, const Box& other, double width, double height, const Clearance& c) const {
    Span columns{grid_.columns, -1}, rows{grid_.rows, -1};
    // A cell more on each side than can be reached.
    const Span near_columns =
        touched(other.x0 - width / 2 - c.across - grid_.cell_width(),
                other.x1 + width / 2 + c.across + grid_.cell_width(), grid_.cell_width(), grid_.columns);
    const Span near_rows = touched(other.y0 - height / 2 - c.up - grid_.cell_height(),
                                   other.y1 + height / 2 + c.up + grid_.cell_height(), grid_.cell_height(), grid_.rows);
    for (std::int32_t column = near_columns.first; column <= near_columns.last; ++column) {
      const Box box = at(column, 0, width, height);
      if (overlap(box.x0, box.x1, other.x0, other.x1, c.across, c.allowed))
        columns = {std::min(columns.first, column), column};
    }
    if (columns.empty()) return;
    for (std::int32_t row = near_rows.first; row <= near_rows.last; ++row) {
      const Box box = at(0, row, width, height);
      if (overlap(box.y0, box.y1, other.y0, other.y1, c.up, c.allowed)) rows = {std::min(rows.first, row), row};
    }
    for (std::int32_t row = rows.first; row <= rows.last; ++row)
      std::fill_n(out.begin() + row * grid_.columns + columns.first, columns.last - columns.first + 1, T{0});
  }

  /// Clears the cells where the node would fill one too much. Only nearly full cells need a look.
  template <class T>
  void limit(std::span<T> out, double width, double height) const {
    const double gw = grid_.cell_width(), gh = grid_.cell_height(), area = gw * gh;
    const double most = std::min(width, gw) * std::min(height, gh) / area;
    const bool any =
        std::ranges::any_of(density_, [&](double value) { return value + most * (1 + 1e-9) > most_density; });
    if (!any) return;
    for (std::int32_t row = 0; row < grid_.rows; ++row) {
      for (std::int32_t column = 0; column < grid_.columns; ++column) {
        T& allowed = out[std::size_t(row * grid_.columns + column)];
        if (!allowed) continue;
        grid_.for_each_shared(at(column, row, width, height), [&](std::int32_t cell, double part) {
          if (!(density_[std::size_t(cell)] + part / area <= most_density)) allowed = T{0};
        });
      }
    }
  }
};

/// Cells at Manhattan distance 0, 1, ... of one, in the order of the published search; ends when visit returns true.
template <class Visit>
bool for_each_nearby(const Grid& grid, std::int32_t cell, std::int32_t most_distance, Visit&& visit) {
  const std::int32_t row = cell / grid.columns;  // towards zero
  const std::int32_t column = ((cell % grid.columns) + grid.columns) % grid.columns;
  const auto look = [&](std::int32_t r, std::int32_t c) {
    return r >= 0 && r < grid.rows && c >= 0 && c < grid.columns && visit(r * grid.columns + c);
  };
  for (std::int32_t distance = 0; distance <= most_distance; ++distance) {
    for (std::int32_t up = -distance; up <= distance; ++up) {
      const std::int32_t across = distance - std::abs(up);
      if (look(row + up, column - across)) return true;
      if (across > 0 && look(row + up, column + across)) return true;
    }
  }
  return false;
}

/// Nodes by descending area, equal ones by index.
inline void sort_by_area(const Layout& layout, std::vector<std::int32_t>& nodes) {
  std::ranges::stable_sort(nodes, std::greater<>(), [&](std::int32_t node) {
    return layout.width[std::size_t(node)] * layout.height[std::size_t(node)];
  });
}

/// Fixes the ports and puts every other free node on the first legal cell around its own; with `only_hard` the hard
/// macros alone, the rest being unplaced. Whether all found one; if not, the layout is left as far as it came.
inline bool legalise(Layout& layout, const Grid& grid, const Rules& rules, std::span<const Blockage> blockages,
                     bool only_hard) {
  std::vector<std::int32_t> nodes;
  for (std::int32_t i = 0; i < std::int32_t(layout.x.size()); ++i) {
    if (layout.netlist().nodes[std::size_t(i)].type == NodeType::port) layout.fixed[std::size_t(i)] = 1;
    else if (takes_room(layout.netlist(), i) && !layout.fixed[std::size_t(i)]) nodes.push_back(i);
  }
  std::vector<std::int32_t> cell(layout.x.size(), -1);
  for (const std::int32_t node : nodes) {
    if (layout.placed[std::size_t(node)]) cell[std::size_t(node)] = grid.cell_of(layout.position(node));
    layout.placed[std::size_t(node)] = 0;
  }
  if (only_hard) std::erase_if(nodes, [&](std::int32_t node) { return !layout.netlist().is_hard(node); });
  sort_by_area(layout, nodes);
  std::vector<double> density = cell_density(layout, grid, blockages);
  const Legality legality(layout, grid, rules, blockages, density);
  std::vector<std::int32_t> mask(std::size_t(grid.size()));
  for (const std::int32_t node : nodes) {
    legality.mask(node, mask);
    const bool found =
        for_each_nearby(grid, cell[std::size_t(node)], grid.columns + grid.rows, [&](std::int32_t there) {
          if (!mask[std::size_t(there)]) return false;
          layout.move(node, grid.centre_of(there));
          return true;
        });
    if (!found) return false;
    add_density(density, grid, box_of(layout, node));
  }
  return true;
}

}  // namespace penstock::floorplan
