/// The routing model: assumed routes of nets, and the tracks that they need in each cell.
#pragma once

#include <array>
#include <utility>

#include "penstock/floorplan/costs/grid.hpp"

namespace penstock::floorplan {

/// Numbers of two directions: `across` for wires from a cell to its right neighbour, row by row, and `up` for those to
/// the one above, column by column. So the wires of one line are contiguous in either.
struct Lines {
  std::int32_t columns = 0, rows = 0;
  std::vector<double> both;  ///< those across, then those up

  Lines() = default;
  explicit Lines(const Grid& grid)
      : columns(grid.columns), rows(grid.rows), both(2 * std::size_t(grid.size()), 0.0) {}

  [[nodiscard]] std::size_t across(std::int32_t row, std::int32_t column) const {
    return std::size_t(row) * std::size_t(columns) + std::size_t(column);
  }
  [[nodiscard]] std::size_t up(std::int32_t row, std::int32_t column) const {
    return both.size() / 2 + std::size_t(column) * std::size_t(rows) + std::size_t(row);
  }
};

/// Calls `wires.across(row, from, to)` and `wires.up(column, from, to)` for each wire of a net, in either order of its
/// ends. `cells` are different ones, the driver's first.
template <class Wires>
void route(std::span<const Cell> cells, Wires&& wires) {
  if (cells.size() != 3) {
    for (std::size_t i = 1; i < cells.size(); ++i) {
      wires.across(cells[0].row, cells[0].column, cells[i].column);
      wires.up(cells[i].column, cells[0].row, cells[i].row);
    }
    return;
  }
  std::array<Cell, 3> s{cells[0], cells[1], cells[2]};
  const auto sort = [&](auto before) {
    if (before(s[1], s[0])) std::swap(s[0], s[1]);
    if (before(s[2], s[1])) std::swap(s[1], s[2]);
    if (before(s[1], s[0])) std::swap(s[0], s[1]);
  };
  sort([](Cell p, Cell q) { return p.column < q.column || (p.column == q.column && p.row < q.row); });
  const auto [a, b, c] = s;
  if (a.column < b.column && b.column < c.column && std::min(a.row, c.row) < b.row && b.row < std::max(a.row, c.row)) {
    wires.across(a.row, a.column, b.column), wires.across(b.row, b.column, c.column);
    wires.up(b.column, a.row, b.row), wires.up(c.column, b.row, c.row);
  } else if (b.column == c.column && a.column < b.column && a.row < std::min(b.row, c.row)) {
    wires.across(a.row, a.column, b.column);
    wires.up(b.column, a.row, std::max(b.row, c.row));
  } else if (b.row == c.row) {
    wires.across(a.row, a.column, b.column), wires.across(b.row, b.column, c.column);
    wires.up(b.column, a.row, b.row);
  } else {
    const auto [low, high] = std::minmax({a.column, b.column, c.column});
    sort([](Cell p, Cell q) { return p.row < q.row || (p.row == q.row && p.column < q.column); });
    wires.across(s[1].row, low, high);
    wires.up(s[0].column, s[0].row, s[1].row), wires.up(s[2].column, s[1].row, s[2].row);
  }
}

/// Adds the wires of nets to their lines: as steps, by how much more are there than in the cell before. So a wire takes
/// two additions, however long it is.
template <class Add>
class Steps {
 public:
  /// `add(line, index of a number of `lines`, weight)`; a column's line is its number and that of the rows.
  Steps(const Lines& lines, double weight, Add add) : lines_(lines), weight_(weight), add_(std::move(add)) {}

  void across(std::int32_t row, std::int32_t from, std::int32_t to) {
    put(std::size_t(row), lines_.across(row, std::min(from, to)), std::size_t(std::abs(to - from)));
  }
  void up(std::int32_t column, std::int32_t from, std::int32_t to) {
    put(std::size_t(lines_.rows + column), lines_.up(std::min(from, to), column), std::size_t(std::abs(to - from)));
  }

 private:
  const Lines& lines_;
  double weight_;
  Add add_;

  void put(std::size_t line, std::size_t first, std::size_t count) {
    if (count > 0) add_(line, first, weight_), add_(line, first + count, -weight_);
  }
};

}  // namespace penstock::floorplan
