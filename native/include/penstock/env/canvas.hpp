/// A picture that an environment draws itself on: RGB, with the few shapes that explain a state.
///
/// Coordinates are pixels, x to the right and y down, from the corner at the upper left; what lies beyond is left out. A
/// pixel belongs to a shape if its centre does.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

struct Rgb {
  std::uint8_t red = 0, green = 0, blue = 0;
};

/// Pixels of the picture that an environment draws.
struct FrameSize {
  std::int64_t height = 0, width = 0;
};

class Canvas {
 public:
  /// Draws into [height, width, 3]; the picture is white at first.
  Canvas(FrameSize size, std::span<std::uint8_t> pixels) : size_(size), pixels_(pixels) { clear({255, 255, 255}); }

  [[nodiscard]] double height() const { return double(size_.height); }
  [[nodiscard]] double width() const { return double(size_.width); }

  void clear(Rgb color) { rectangle(0, 0, width(), height(), color); }

  /// From the corner (x, y) to the right and down.
  void rectangle(double x, double y, double wide, double high, Rgb color) {
    fill(x, y, x + wide, y + high, color, [](double, double) { return true; });
  }

  void disc(double x, double y, double radius, Rgb color) {
    fill(x - radius, y - radius, x + radius, y + radius, color, [&](double px, double py) {
      return (px - x) * (px - x) + (py - y) * (py - y) <= radius * radius;
    });
  }

  /// From one point to another, with round ends.
  void line(double x, double y, double to_x, double to_y, double thickness, Rgb color) {
    const double half = thickness / 2, dx = to_x - x, dy = to_y - y, length = dx * dx + dy * dy;
    fill(std::min(x, to_x) - half, std::min(y, to_y) - half, std::max(x, to_x) + half, std::max(y, to_y) + half, color,
         [&](double px, double py) {
           const double along = length > 0 ? std::clamp(((px - x) * dx + (py - y) * dy) / length, 0.0, 1.0) : 0.0;
           const double off_x = px - x - along * dx, off_y = py - y - along * dy;
           return off_x * off_x + off_y * off_y <= half * half;
         });
  }

 private:
  template <class Inside>
  void fill(double left, double top, double right, double bottom, Rgb color, Inside&& inside) {
    const auto first = [](double value, std::int64_t limit) {
      return std::isfinite(value) ? std::int64_t(std::clamp(std::floor(value), 0.0, double(limit))) : 0;
    };
    const auto last = [](double value, std::int64_t limit) {
      return std::isfinite(value) ? std::int64_t(std::clamp(std::ceil(value), 0.0, double(limit))) : 0;
    };
    const std::int64_t until_y = last(bottom, size_.height), until_x = last(right, size_.width);
    for (std::int64_t row = first(top, size_.height); row < until_y; ++row)
      for (std::int64_t column = first(left, size_.width); column < until_x; ++column) {
        const double x = double(column) + 0.5, y = double(row) + 0.5;
        if (x < left || x >= right || y < top || y >= bottom || !inside(x, y)) continue;
        std::uint8_t* pixel = &pixels_[std::size_t(3 * (row * size_.width + column))];
        pixel[0] = color.red, pixel[1] = color.green, pixel[2] = color.blue;
      }
  }

  FrameSize size_;
  std::span<std::uint8_t> pixels_;
};

}  // namespace penstock
