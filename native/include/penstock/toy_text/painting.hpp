/// Draws worlds of squares: a board as large as the picture allows, and what stands on its squares.
#pragma once

#include <algorithm>
#include <cstdint>

#include "penstock/env/canvas.hpp"

namespace penstock::toy_text {

inline constexpr FrameSize picture{.height = 256, .width = 256};
inline constexpr Rgb ice{205, 230, 250}, water{25, 60, 120}, line_color{120, 130, 140}, player_color{215, 40, 40},
    goal_color{40, 160, 70}, start_color{240, 225, 150};

class Board {
 public:
  Board(Canvas& canvas, std::int64_t rows, std::int64_t columns)
      : canvas_(canvas), side_(std::min(canvas.height() / double(rows), canvas.width() / double(columns))) {}

  [[nodiscard]] double side() const { return side_; }

  void square(std::int64_t row, std::int64_t column, Rgb color) {
    canvas_.rectangle(double(column) * side_, double(row) * side_, side_, side_, line_color);
    canvas_.rectangle(double(column) * side_ + 1, double(row) * side_ + 1, side_ - 2, side_ - 2, color);
  }
  /// A disc of this part of a square's side.
  void disc(std::int64_t row, std::int64_t column, double diameter, Rgb color) {
    canvas_.disc((double(column) + 0.5) * side_, (double(row) + 0.5) * side_, diameter * side_ / 2, color);
  }
  /// A box of this part of a square's side.
  void box(std::int64_t row, std::int64_t column, double part, Rgb color) {
    const double margin = (1 - part) / 2 * side_;
    canvas_.rectangle(double(column) * side_ + margin, double(row) * side_ + margin, part * side_, part * side_, color);
  }
  /// A wall along a square's right side.
  void wall(std::int64_t row, std::int64_t column, Rgb color) {
    canvas_.rectangle(double(column + 1) * side_ - 3, double(row) * side_, 6, side_, color);
  }

 private:
  Canvas& canvas_;
  double side_;
};

}  // namespace penstock::toy_text
