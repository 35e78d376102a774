/// The canvas and its cells.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "penstock/floorplan/layout.hpp"

namespace penstock::floorplan {

struct Box {
  double x0, y0, x1, y1;
};
inline Box box_around(Point centre, double width, double height) {
  return {centre.x - width / 2, centre.y - height / 2, centre.x + width / 2, centre.y + height / 2};
}
inline Box box_of(const Layout& layout, std::int32_t node) {
  const auto i = std::size_t(node);
  return box_around({layout.x[i], layout.y[i]}, layout.width[i], layout.height[i]);
}

/// First and last cell along one side that an interval touches; none where first > last.
struct Span {
  std::int32_t first, last;
  [[nodiscard]] bool empty() const { return first > last; }
};

inline Span touched(double low, double high, double cell, std::int32_t count) {
  const double first = std::floor(low / cell), last = std::floor(high / cell);
  return {static_cast<std::int32_t>(std::clamp(first, 0.0, double(count))),
          static_cast<std::int32_t>(std::clamp(last, -1.0, double(count - 1)))};
}
/// Length that an interval shares with cell `i`; negative where they are apart.
inline double shared(double low, double high, double cell, std::int32_t i) {
  return std::min(high, (i + 1) * cell) - std::max(low, i * cell);
}

struct Cell {
  std::int32_t column, row;
  bool operator==(const Cell&) const = default;
};

/// Cell `row * columns + column`, row 0 at the bottom.
struct Grid {
  double width = 0, height = 0;
  std::int32_t columns = 1, rows = 1;

  [[nodiscard]] double cell_width() const { return width / columns; }
  [[nodiscard]] double cell_height() const { return height / rows; }
  [[nodiscard]] std::int32_t size() const { return columns * rows; }

  /// Returns the cell of a point; -1 outside the canvas. The right and the top edge belong to the last cells.
  [[nodiscard]] std::int32_t cell_of(Point p) const {
    if (!contains(p)) return -1;
    const Cell cell = locate(p, cell_width(), cell_height());
    return cell.row * columns + cell.column;
  }
  [[nodiscard]] bool contains(Point p) const { return p.x >= 0 && p.x <= width && p.y >= 0 && p.y <= height; }
  /// Returns the cell of a point in the canvas; the caller passes the cells' sides, since the divisions are the cost.
  [[nodiscard]] Cell locate(Point p, double cell_wide, double cell_high) const {
    // Not below 0, so that cutting off is rounding down, without the call that std::floor is.
    return {std::min(columns - 1, static_cast<std::int32_t>(p.x / cell_wide)),
            std::min(rows - 1, static_cast<std::int32_t>(p.y / cell_high))};
  }
  [[nodiscard]] Point centre_of(std::int32_t cell) const {
    return {(cell % columns) * cell_width() + cell_width() / 2, (cell / columns) * cell_height() + cell_height() / 2};
  }
  [[nodiscard]] Span columns_of(const Box& box) const { return touched(box.x0, box.x1, cell_width(), columns); }
  [[nodiscard]] Span rows_of(const Box& box) const { return touched(box.y0, box.y1, cell_height(), rows); }

  /// Calls visit(cell, shared area) for each cell that shares area with a box.
  template <class Visit>
  void for_each_shared(const Box& box, Visit&& visit) const {
    const double gw = cell_width(), gh = cell_height();
    const Span across = columns_of(box), up = rows_of(box);
    for (std::int32_t row = up.first; row <= up.last; ++row) {
      const double high = shared(box.y0, box.y1, gh, row);
      if (high <= 0) continue;
      for (std::int32_t column = across.first; column <= across.last; ++column)
        if (const double wide = shared(box.x0, box.x1, gw, column); wide > 0)
          visit(row * columns + column, wide * high);
    }
  }
};

/// Finds the mean of the `count` largest values, again and again of values that change little: where the least of them
/// was last time selects the candidates. The result does not depend on it.
class Largest {
 public:
  double mean(std::span<const double> values, std::int32_t count) {
    taken_.resize(values.size()), order_.resize(values.size());
    std::span<const double> taken = collect(values, least_ - margin * std::abs(least_));
    if (taken.size() < std::size_t(count)) taken = collect(values, -std::numeric_limits<double>::infinity());
    // Those far above are among the largest, in whatever order; if they alone are too many, all have to be ordered.
    std::span<double> order = up_to(least_ + margin * std::abs(least_), taken);
    if (taken.size() - order.size() >= std::size_t(count))
      order = up_to(std::numeric_limits<double>::infinity(), taken);
    const auto nth = order.begin() + (count - std::ptrdiff_t(taken.size() - order.size()) - 1);
    std::nth_element(order.begin(), nth, order.end(), std::greater<>());
    least_ = *nth;
    double sum = 0;
    std::int32_t larger = 0;
    for (const double value : taken) sum += value > least_ ? value : 0.0, larger += value > least_;
    return (sum + (count - larger) * least_) / count;
  }
  /// Returns the least value in the last mean.
  [[nodiscard]] double least() const { return least_; }

 private:
  static constexpr double margin = 0.002;
  double least_ = std::numeric_limits<double>::lowest();
  std::vector<double> taken_, order_;

  /// Returns the values of at least `least`, in order. Most are far below: many are checked together.
  std::span<const double> collect(std::span<const double> values, double least) {
    constexpr std::size_t lanes = 8, together = 4 * lanes;
    std::size_t found = 0, i = 0;
    const auto take = [&](std::size_t end) {
      for (; i < end; ++i) taken_[found] = values[i], found += values[i] >= least;
    };
    while (i + together <= values.size()) {
      std::array<double, lanes> most;
      std::copy_n(values.data() + i, lanes, most.begin());
      for (std::size_t j = i + lanes; j < i + together; j += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) most[lane] = std::max(most[lane], values[j + lane]);
      for (std::size_t half = lanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) most[lane] = std::max(most[lane], most[lane + half]);
      if (most[0] >= least) take(i + together);
      else i += together;
    }
    take(values.size());
    return std::span(taken_).first(found);
  }
  std::span<double> up_to(double most, std::span<const double> values) {
    std::size_t found = 0;
    for (const double value : values) order_[found] = value, found += value <= most;
    return std::span(order_).first(found);
  }
};

}  // namespace penstock::floorplan
