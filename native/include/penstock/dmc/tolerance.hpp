/// The reward function of the control suite (Tassa et al. 2018, arXiv 1801.00690): 1 within bounds, and outside of them
/// a sigmoid of the distance.
#pragma once

#include <cmath>
#include <limits>

#include "penstock/numpy_math.hpp"

namespace penstock::dmc {

inline constexpr double unlimited = std::numeric_limits<double>::infinity();

enum class Sigmoid { gaussian, linear, quadratic, long_tail, reciprocal };

/// Returns 1 at a distance of 0, `at_margin` at one of 1 (a margin). NumPy squares the elements of an array by a product,
/// and a number by the C library's pow, which differs now and then in the last bit.
inline double sigmoid(Sigmoid kind, double x, double at_margin, bool in_array) {
  const auto squared = [in_array](double value) { return in_array ? value * value : square(value); };
  switch (kind) {
    case Sigmoid::gaussian: {
      const double scaled = x * std::sqrt(-2.0 * std::log(at_margin));
      return std::exp(-0.5 * squared(scaled));
    }
    case Sigmoid::linear: {
      const double scaled = x * (1.0 - at_margin);
      return std::abs(scaled) < 1.0 ? 1.0 - scaled : 0.0;
    }
    case Sigmoid::quadratic: {
      const double scaled = x * std::sqrt(1.0 - at_margin);
      return std::abs(scaled) < 1.0 ? 1.0 - squared(scaled) : 0.0;
    }
    case Sigmoid::long_tail: {
      const double scaled = x * std::sqrt(1.0 / at_margin - 1.0);
      return 1.0 / (squared(scaled) + 1.0);
    }
    case Sigmoid::reciprocal: return 1.0 / (std::abs(x) * (1.0 / at_margin - 1.0) + 1.0);
  }
  return 0.0;
}

/// Bounds are inclusive. Without a margin, 0 outside of them.
struct Tolerance {
  double low = 0.0, high = 0.0;
  double margin = 0.0;
  Sigmoid kind = Sigmoid::gaussian;
  double at_margin = 0.1;
  bool in_array = false;  ///< the suite applies it to an array of values

  double operator()(double x) const {
    if (low <= x && x <= high) return 1.0;
    if (margin == 0.0) return 0.0;
    return sigmoid(kind, (x < low ? low - x : x - high) / margin, at_margin, in_array);
  }
};

}  // namespace penstock::dmc
