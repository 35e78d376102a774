/// The canvas and its cells.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
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

/// Numbers that one instruction adds or compares, on every processor that is compiled for. What is as wide on some is
/// slower on others.
using Wide [[gnu::vector_size(16)]] = double;

/// Finds the mean of the `count` largest values, again and again of values that change little: where the least of them
/// was last time, and how far it moves, selects the candidates. The result does not depend on it.
class Largest {
 public:
  double mean(std::span<const double> values, std::int32_t count) {
    taken_.resize(values.size()), order_.resize(values.size());
    std::span<const double> taken = collect(values, least_ - margin_);
    for (; taken.size() < std::size_t(count); taken = collect(values, least_ - margin_))
      margin_ = margin_ > 0 && margin_ < widest * std::abs(least_) ? 8 * margin_ : infinity;
    // Those far above are among the largest, in whatever order; if they alone are too many, all have to be ordered.
    std::span<double> order = up_to(least_ + margin_, taken);
    if (taken.size() - order.size() >= std::size_t(count))
      order = up_to(infinity, taken);
    const auto nth = order.begin() + (count - std::ptrdiff_t(taken.size() - order.size()) - 1);
    std::nth_element(order.begin(), nth, order.end(), std::greater<>());
    // The narrower the margin is, the fewer are ordered, and the likelier it is that the next least is beyond it.
    const double moved = 4 * std::abs(*nth - least_), narrowest = 1e-6 * std::abs(*nth);
    margin_ = std::max({narrowest, moved, std::min(0.9 * margin_, widest * std::abs(*nth))});
    least_ = *nth;
    double sum = 0;
    std::int32_t larger = 0;
    for (const double value : taken) sum += value > least_ ? value : 0.0, larger += value > least_;
    return (sum + (count - larger) * least_) / count;
  }
  /// Returns the least value in the last mean.
  [[nodiscard]] double least() const { return least_; }

 private:
  static constexpr double widest = 0.002, infinity = std::numeric_limits<double>::infinity();
  double least_ = 0, margin_ = infinity;  ///< `widest`: relative
  std::vector<double> taken_, order_;

  /// Returns the values of at least `least`, in order. Most are far below: many are checked together.
  std::span<const double> collect(std::span<const double> values, double least) {
    constexpr std::size_t few = 8, many = 4 * few;
    std::size_t found = 0, i = 0;
    const auto take = [&](std::size_t end) {
      for (; i < end; ++i) taken_[found] = values[i], found += values[i] >= least;
    };
    const auto any = [&]<std::size_t count>(std::integral_constant<std::size_t, count>) {
      const double* const from = values.data() + i;
      const auto larger = [](Wide& to, const double* at) {
        Wide other;
        std::memcpy(&other, at, sizeof other);
        to = to > other ? to : other;
      };
      Wide a, b, c, d;
      std::memcpy(&a, from, sizeof a), std::memcpy(&b, from + 2, sizeof b);
      std::memcpy(&c, from + 4, sizeof c), std::memcpy(&d, from + 6, sizeof d);
      for (std::size_t j = 8; j < count; j += 8)
        larger(a, from + j), larger(b, from + j + 2), larger(c, from + j + 4), larger(d, from + j + 6);
      a = a > b ? a : b, c = c > d ? c : d, a = a > c ? a : c;
      return std::max(a[0], a[1]) >= least;
    };
    while (i + many <= values.size()) {
      const std::size_t end = i + many;
      if (any(std::integral_constant<std::size_t, many>())) {
        while (i < end) {
          if (any(std::integral_constant<std::size_t, few>())) take(i + few);
          else i += few;
        }
      }
      i = end;
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
