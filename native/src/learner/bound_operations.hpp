// Operations of algorithms with bounded actions and with quantiles of returns; `operations.cpp` has the others.
#pragma once

#include <cmath>
#include <cstddef>

#include "operations.hpp"

namespace penstock::learner {

// Outputs [n] -> their hyperbolic tangents [n].
inline std::size_t bound(const Kernels&, const Arguments& a) {
  for (std::size_t i = 0; i < a.sizes[0]; ++i) a.floats(1)[i] = std::tanh(a.floats(0)[i]);
  return 0;
}

// A gradient [n], hyperbolic tangents [n] -> the gradient of the outputs [n].
inline std::size_t bound_back(const Kernels&, const Arguments& a) {
  for (std::size_t i = 0; i < a.sizes[0]; ++i)
    a.floats(2)[i] = a.floats(0)[i] * (1.0f - a.floats(1)[i] * a.floats(1)[i]);
  return 0;
}

inline float clamped(float value, float limit) { return value < -limit ? -limit : value > limit ? limit : value; }

// Actions [n], noise [n], its deviation and its limit -> actions displaced by the noise, from -1 to 1.
inline std::size_t jitter(const Kernels&, const Arguments& a) {
  const float deviation = static_cast<float>(a.numbers[0]), limit = static_cast<float>(a.numbers[1]);
  for (std::size_t i = 0; i < a.sizes[0]; ++i)
    a.floats(2)[i] = clamped(a.floats(0)[i] + clamped(a.floats(1)[i] * deviation, limit), 1.0f);
  return 0;
}

// Outputs [rows, 1 + n, q] -> the first and the others without their mean over n [rows, n, q].
inline std::size_t dueling_quantiles(const Kernels&, const Arguments& a) {
  const std::size_t n = a.sizes[1], q = a.sizes[2];
  const float* outputs = a.floats(0);
  float* values = a.floats(1);
  for (std::size_t row = 0; row < a.sizes[0]; ++row, outputs += (n + 1) * q, values += n * q)
    for (std::size_t k = 0; k < q; ++k) {
      float sum = 0.0f;
      for (std::size_t i = 0; i < n; ++i) sum += outputs[(1 + i) * q + k];
      const float shift = outputs[k] - sum / static_cast<float>(n);
      for (std::size_t i = 0; i < n; ++i) values[i * q + k] = shift + outputs[(1 + i) * q + k];
    }
  return 0;
}

// A gradient [rows, n, q] -> that of the outputs [rows, 1 + n, q].
inline std::size_t dueling_quantiles_back(const Kernels&, const Arguments& a) {
  const std::size_t n = a.sizes[1], q = a.sizes[2];
  const float* gradient = a.floats(0);
  float* out = a.floats(1);
  for (std::size_t row = 0; row < a.sizes[0]; ++row, gradient += n * q, out += (n + 1) * q)
    for (std::size_t k = 0; k < q; ++k) {
      float sum = 0.0f;
      for (std::size_t i = 0; i < n; ++i) sum += gradient[i * q + k];
      out[k] = sum;
      for (std::size_t i = 0; i < n; ++i) out[(1 + i) * q + k] = gradient[i * q + k] - sum / static_cast<float>(n);
    }
  return 0;
}

// Quantiles [m, q] -> their means [m].
inline std::size_t quantile_means(const Kernels&, const Arguments& a) {
  const std::size_t q = a.sizes[1];
  const float* values = a.floats(0);
  for (std::size_t i = 0; i < a.sizes[0]; ++i, values += q) {
    float sum = 0.0f;
    for (std::size_t k = 0; k < q; ++k) sum += values[k];
    a.floats(1)[i] = sum / static_cast<float>(q);
  }
  return 0;
}

// Quantiles [rows, n, q], choices, returns and factors [rows] -> return + factor * the choice's quantiles [rows, q].
inline std::size_t quantile_targets(const Kernels&, const Arguments& a) {
  const std::size_t n = a.sizes[1], q = a.sizes[2];
  for (std::size_t row = 0; row < a.sizes[0]; ++row) {
    const std::int64_t choice = a.integers(1)[row];
    if (choice < 0 || static_cast<std::size_t>(choice) >= n) return n;
    const float* values = a.floats(0) + (row * n + static_cast<std::size_t>(choice)) * q;
    for (std::size_t k = 0; k < q; ++k) a.floats(4)[row * q + k] = a.floats(2)[row] + a.floats(3)[row] * values[k];
  }
  return 0;
}

// Quantiles [rows, n, q], choices [rows], targets [rows, q] and kappa -> the mean of the choice's quantiles [rows], minus
// the gradient of each of these [rows, q], and the quantile Huber loss [rows].
inline std::size_t quantile_error(const Kernels&, const Arguments& a) {
  const std::size_t n = a.sizes[1], q = a.sizes[2];
  const float limit = static_cast<float>(a.numbers[0]), share = 1.0f / static_cast<float>(q);
  for (std::size_t row = 0; row < a.sizes[0]; ++row) {
    const std::int64_t choice = a.integers(1)[row];
    if (choice < 0 || static_cast<std::size_t>(choice) >= n) return n;
    const float* values = a.floats(0) + (row * n + static_cast<std::size_t>(choice)) * q;
    const float* target = a.floats(2) + row * q;
    float* slope = a.floats(4) + row * q;
    float mean = 0.0f, loss = 0.0f;
    for (std::size_t i = 0; i < q; ++i) {
      const float middle = (static_cast<float>(i) + 0.5f) * share, value = values[i];
      float to_value = 0.0f, sum = 0.0f;
      for (std::size_t j = 0; j < q; ++j) {
        const float error = target[j] - value, limited = clamped(error, limit);
        const float weighted = (error < 0.0f ? 1.0f - middle : middle) * limited;
        to_value += weighted;
        sum += weighted * (error - 0.5f * limited);
      }
      slope[i] = to_value * share;
      loss += sum * share;
      mean += value;
    }
    a.floats(3)[row] = mean * share;
    a.floats(5)[row] = loss;
  }
  return 0;
}

// A gradient [rows], slopes [rows, q], choices [rows] -> the gradient of the quantiles [rows, n, q].
inline std::size_t quantile_error_back(const Kernels&, const Arguments& a) {
  const std::size_t n = a.sizes[1], q = a.sizes[2];
  float* out = a.floats(3);
  for (std::size_t i = 0; i < a.sizes[0] * n * q; ++i) out[i] = 0.0f;
  for (std::size_t row = 0; row < a.sizes[0]; ++row) {
    float* to_choice = out + (row * n + static_cast<std::size_t>(a.integers(2)[row])) * q;
    for (std::size_t k = 0; k < q; ++k) to_choice[k] = -a.floats(0)[row] * a.floats(1)[row * q + k];
  }
  return 0;
}

}  // namespace penstock::learner
