/// The terrain of `quadruped-escape`: a bowl, and bumps on it that a cubic spline makes of numbers on a coarse grid.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>
#include <vector>

namespace penstock::dmc {

/// Computes what dm_control computes with NumPy and SciPy, in the same order; both grids are square.
class Terrain {
 public:
  Terrain(std::size_t coarse, std::size_t fine) : coarse_(coarse), places_(fine), bowl_(fine * fine) {
    const double step = 2.0 / double(fine - 1), zoom = double(coarse - 1) / double(fine - 1);
    for (std::size_t row = 0; row < fine; ++row) {
      for (std::size_t column = 0; column < fine; ++column) {
        const double x = double(column) * step - 1.0, y = double(row) * step - 1.0;
        const double radius = std::clamp(std::sqrt(x * x + y * y), 0.04, 1.0);
        bowl_[row * fine + column] = 0.5 - std::cos(2.0 * std::numbers::pi * radius) / 2.0;
      }
      places_[row] = Place(zoom * double(row), coarse);
    }
  }

  [[nodiscard]] std::size_t bumps() const { return coarse_ * coarse_; }
  [[nodiscard]] std::size_t heights() const { return bowl_.size(); }

  /// Makes the heights, row by row, of the bumps.
  void write(std::span<const double> bumps, float* heights) const {
    std::vector<double> knots(bumps.begin(), bumps.end());
    for (std::size_t column = 0; column < coarse_; ++column) filter(knots.data() + column, coarse_);
    for (std::size_t row = 0; row < coarse_; ++row) filter(knots.data() + row * coarse_, 1);
    const std::size_t fine = places_.size();
    for (std::size_t row = 0; row < fine; ++row)
      for (std::size_t column = 0; column < fine; ++column) {
        const Place &down = places_[row], &across = places_[column];
        double smooth = 0.0;
        for (std::size_t i = 0; i < 4; ++i)
          for (std::size_t j = 0; j < 4; ++j)
            smooth += knots[down.knots[i] * coarse_ + across.knots[j]] * down.weights[i] * across.weights[j];
        heights[row * fine + column] = static_cast<float>(bowl_[row * fine + column] * smooth);
      }
  }

 private:
  /// The four knots around a fine coordinate, mirrored at the edges, and their weights.
  struct Place {
    std::array<std::size_t, 4> knots{};
    std::array<double, 4> weights{};

    Place() = default;
    Place(double at, std::size_t count) {
      const double left = std::floor(at), x = at - left, rest = 1.0 - x;
      weights[0] = rest * rest * rest / 6.0;
      weights[1] = (x * x * (x - 2.0) * 3.0 + 4.0) / 6.0;
      weights[2] = (rest * rest * (rest - 2.0) * 3.0 + 4.0) / 6.0;
      weights[3] = 1.0 - weights[0] - weights[1] - weights[2];
      const auto last = static_cast<std::ptrdiff_t>(count) - 1;
      for (std::ptrdiff_t i = 0; i < 4; ++i) {
        std::ptrdiff_t knot = std::abs(static_cast<std::ptrdiff_t>(left) - 1 + i);
        if (knot > last) knot = 2 * last - knot;
        knots[std::size_t(i)] = std::size_t(knot);
      }
    }
  };

  /// Makes a line of values the coefficients of the spline through them (Unser et al. 1993, doi 10.1109/78.193220).
  void filter(double* line, std::size_t stride) const {
    const double pole = std::sqrt(3.0) - 2.0, gain = (1.0 - pole) * (1.0 - 1.0 / pole);
    const auto at = [=](std::size_t i) -> double& { return line[i * stride]; };
    const std::size_t last = coarse_ - 1;
    for (std::size_t i = 0; i <= last; ++i) at(i) *= gain;
    const double over_all = std::pow(pole, double(last));
    double power = pole;
    at(0) += over_all * at(last);
    for (std::size_t i = 1; i < last; ++i, power *= pole) at(0) += power * (at(i) + over_all * at(last - i));
    at(0) /= 1.0 - over_all * over_all;
    for (std::size_t i = 1; i <= last; ++i) at(i) += pole * at(i - 1);
    at(last) = (pole * at(last - 1) + at(last)) * pole / (pole * pole - 1.0);
    for (std::size_t i = last; i-- > 0;) at(i) = pole * (at(i + 1) - at(i));
  }

  std::size_t coarse_;
  std::vector<Place> places_;
  std::vector<double> bowl_;
};

}  // namespace penstock::dmc
