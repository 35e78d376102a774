/// Draws a grid: a square a cell, with the colours of MiniGrid's pictures.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/minigrid/world.hpp"

namespace penstock::minigrid {

inline void paint_cell(Canvas& canvas, Cell c, double x, double y, double side) {
  constexpr std::array<Rgb, 6> colors{{{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {112, 39, 195}, {255, 255, 0}, {100, 100, 100}}};
  constexpr Rgb dark{0, 0, 0};
  const Rgb color = colors[color_of(c)];
  const auto inner = [&](double margin, Rgb with) {
    canvas.rectangle(x + margin * side, y + margin * side, (1 - 2 * margin) * side, (1 - 2 * margin) * side, with);
  };
  switch (kind_of(c)) {
    case wall:
    case goal: inner(0, color); break;
    case lava: inner(0, {255, 128, 0}); break;
    case locked_door: inner(0, color), inner(0.2, {60, 60, 60}), inner(0.35, color); break;
    case closed_door: inner(0, color), inner(0.1, dark), inner(0.2, color), inner(0.3, dark); break;
    case door: canvas.rectangle(x + 0.85 * side, y, 0.15 * side, side, color); break;
    case ball: canvas.disc(x + side / 2, y + side / 2, 0.31 * side, color); break;
    case box: inner(0.12, color), inner(0.22, dark); break;
    case key:
      canvas.disc(x + 0.5 * side, y + 0.3 * side, 0.19 * side, color);
      canvas.rectangle(x + 0.44 * side, y + 0.3 * side, 0.13 * side, 0.55 * side, color);
      break;
    default: break;
  }
}

inline void paint(const State& s, Canvas& canvas) {
  canvas.clear({0, 0, 0});
  const double side = std::min(canvas.width() / double(s.width), canvas.height() / double(s.height));
  for (std::int64_t y = 0; y < s.height; ++y)
    for (std::int64_t x = 0; x < s.width; ++x)
      paint_cell(canvas, World::at(s, x, y), double(x) * side, double(y) * side, side);
  const auto facing = std::size_t(s.direction);
  const double dx = double(ahead_x[facing]), dy = double(ahead_y[facing]);
  const double x = (double(s.x) + 0.5) * side, y = (double(s.y) + 0.5) * side;
  canvas.disc(x, y, 0.3 * side, {255, 0, 0});
  canvas.line(x, y, x + 0.4 * side * dx, y + 0.4 * side * dy, 0.25 * side, {255, 0, 0});
}

}  // namespace penstock::minigrid
