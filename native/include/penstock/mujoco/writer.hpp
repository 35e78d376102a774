/// Writes an observation, one part after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "penstock/mujoco/numpy_array.hpp"

namespace penstock::mujoco {

class Writer {
 public:
  explicit Writer(std::span<double> out) : first_(out.data()), next_(out.data()) {}
  Writer& put(std::span<const double> values) {
    next_ = std::copy(values.begin(), values.end(), next_);
    return *this;
  }
  Writer& put_clipped(std::span<const double> values, double low, double high) {
    next_ = std::transform(values.begin(), values.end(), next_, [=](double value) { return clip(value, low, high); });
    return *this;
  }
  Writer& put(double value) {
    *next_++ = value;
    return *this;
  }
  /// Returns the number of values so far.
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(next_ - first_); }

 private:
  const double* first_;
  double* next_;
};

}  // namespace penstock::mujoco
