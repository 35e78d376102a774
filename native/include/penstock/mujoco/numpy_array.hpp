/// NumPy's arithmetic over short arrays, bit for bit: which sums it makes first, and whether it rounds products.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <span>

namespace penstock {

/// `np.sum` of `at(0) ... at(Size - 1)` in their own type: eight partial sums, then pairs of them.
template <std::size_t Size, class At>
auto numpy_sum(At&& at) {
  static_assert(Size > 0 && Size <= 128, "NumPy halves longer arrays first");
  using T = decltype(at(std::size_t{0}));
  std::size_t next = 0;
  T sum{};
  if constexpr (Size >= 8) {
    std::array<T, 8> part;
    for (; next < 8; ++next) part[next] = at(next);
    for (; next + 8 <= Size; next += 8)
      for (std::size_t i = 0; i < 8; ++i) part[i] += at(next + i);
    sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  }
  for (; next < Size; ++next) sum += at(next);
  return sum;
}

/// `np.sum(np.square(values))`.
template <class T, std::size_t Size>
T sum_of_squares(std::span<const T, Size> values) {
  return numpy_sum<Size>([&](std::size_t i) { return values[i] * values[i]; });
}

/// `np.clip(value, low, high)`; a NaN stays one.
inline double clip(double value, double low, double high) noexcept {
  if (std::isnan(value)) return value;
  const double raised = value > low ? value : low;
  return raised < high ? raised : high;
}

/// `np.linalg.norm(vector)`. It squares through the dot product of NumPy's BLAS, which fuses multiplication and
/// addition where the processor can: `fused` is true if it does here.
template <std::size_t Size>
double norm(const std::array<double, Size>& vector, bool fused) noexcept {
  double sum = 0.0;
  for (const double value : vector) sum = fused ? std::fma(value, value, sum) : sum + value * value;
  return std::sqrt(sum);
}

namespace mujoco {

/// Set by native/pool/mujoco_library.py: whether NumPy's dot product of two short vectors fuses multiply and add.
inline std::atomic<bool> dot_is_fused{false};

}  // namespace mujoco

}  // namespace penstock
