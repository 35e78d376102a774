#include "operations.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "bound_operations.hpp"

namespace penstock::learner {
namespace {

using Size = std::size_t;
using Given = const Arguments&;

// Rows [rows, n], mean [n] (nullptr: none), scale [n] -> (rows - mean) * scale within +-limit; a NaN stays one.
Size normalise(const Kernels&, Given a) {
  const float *values = a.floats(0), *mean = a.floats(1), *scale = a.floats(2);
  float* out = a.floats(3);
  const float limit = static_cast<float>(a.numbers[0]);
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row)
    for (Size i = 0; i < n; ++i) {
      const float value = (values[row * n + i] - (mean ? mean[i] : 0.0f)) * scale[i];
      out[row * n + i] = value < -limit ? -limit : value > limit ? limit : value;
    }
  return 0;
}

// Values [n] and the float64 sums of all values of a round (number, sum, sum of squares) -> mean 0 and variance 1.
Size standardise(const Kernels&, Given a) {
  const double count = *a.doubles(1), mean = *a.doubles(2) / count;
  const double spread = *a.doubles(3) / count - mean * mean, variance = spread > 0.0 ? spread : 0.0;
  const float shift = static_cast<float>(mean), factor = static_cast<float>(1.0 / (std::sqrt(variance) + 1e-8));
  const float* values = a.floats(0);
  float* out = a.floats(4);
  for (Size i = 0; i < a.sizes[0]; ++i) out[i] = (values[i] - shift) * factor;
  return 0;
}

// Outputs [rows, n], target [rows] -> how far the last output is above it [rows], and half the square of that [rows].
Size half_square(const Kernels&, Given a) {
  const float *outputs = a.floats(0), *target = a.floats(1);
  float *error = a.floats(2), *found = a.floats(3);
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row) {
    error[row] = outputs[row * n + n - 1] - target[row];
    found[row] = 0.5f * (error[row] * error[row]);
  }
  return 0;
}

// A gradient [rows], error [rows] -> the gradient of the outputs [rows, n].
Size half_square_back(const Kernels&, Given a) {
  const float *gradient = a.floats(0), *error = a.floats(1);
  float* out = a.floats(2);
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row) {
    for (Size i = 0; i + 1 < n; ++i) out[row * n + i] = 0.0f;
    out[row * n + n - 1] = gradient[row] * error[row];
  }
  return 0;
}

// Outputs [rows, n], target [rows], values before [rows] (nullptr: none) -> the slope [rows] of the last output's error,
// and the error [rows]: half a square, beyond numbers[0] linear unless that is 0 (Huber's). With values before, the larger
// of that and the error of the output held within numbers[1] of them, which then has no slope.
Size limited_error(const Kernels&, Given a) {
  const float *outputs = a.floats(0), *target = a.floats(1), *before = a.floats(2);
  float *slope = a.floats(3), *found = a.floats(4);
  const Size n = a.sizes[1];
  const float delta = static_cast<float>(a.numbers[0]), range = static_cast<float>(a.numbers[1]);
  const auto limited = [](float value, float most) { return value < -most ? -most : value > most ? most : value; };
  const auto slope_of = [&](float error) { return delta == 0.0f ? error : limited(error, delta); };
  for (Size row = 0; row < a.sizes[0]; ++row) {
    const float value = outputs[row * n + n - 1], error = value - target[row];
    slope[row] = slope_of(error);
    found[row] = slope[row] * (error - 0.5f * slope[row]);
    if (!before) continue;
    const float held_error = before[row] + limited(value - before[row], range) - target[row];
    const float held_slope = slope_of(held_error), held = held_slope * (held_error - 0.5f * held_slope);
    if (held > found[row]) slope[row] = std::fabs(value - before[row]) <= range ? held_slope : 0.0f, found[row] = held;
  }
  return 0;
}

// Features [rows, agents, n] -> inputs [rows, count, width] of the agents from `first` on: an agent's own features, with
// `central` followed by those of the agents after it, and with `ids` its number among all agents, one-hot. An agent that
// is not there (0 in `there` [rows, agents]; nullptr: all are) is zeros to others, and gets zeros and its number.
Size agent_inputs(const Kernels&, Given a) {
  const float *features = a.floats(0), *there = a.floats(1);
  float* out = a.floats(2);
  const Size agents = a.sizes[1], n = a.sizes[2], first = a.sizes[3], count = a.sizes[4];
  const Size seen = a.sizes[5] ? agents : 1;
  for (Size row = 0; row < a.sizes[0]; ++row, features += agents * n, there += there ? agents : 0)
    for (Size agent = first; agent < first + count; ++agent) {
      for (Size other = 0; other < seen; ++other) {
        const Size source = (agent + other) % agents;
        const bool is_seen = !there || (there[agent] != 0.0f && there[source] != 0.0f);
        out = is_seen ? std::copy_n(features + source * n, n, out) : std::fill_n(out, n, 0.0f);
      }
      if (a.sizes[6])
        for (Size id = 0; id < agents; ++id) *out++ = id == agent ? 1.0f : 0.0f;
    }
  return 0;
}

// Values [rows, n] -> their means [rows].
Size row_means(const Kernels&, Given a) {
  const float* values = a.floats(0);
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row, values += n) {
    float sum = 0.0f;
    for (Size i = 0; i < n; ++i) sum += values[i];
    a.floats(1)[row] = sum / static_cast<float>(n);
  }
  return 0;
}

// Values [rows, n], choices [rows], target [rows] -> errors of the chosen values [rows], their slopes (with numbers[0]
// within -1 and 1: Huber's) and slope * (error - slope / 2).
Size choice_error(const Kernels&, Given a) {
  const float *values = a.floats(0), *target = a.floats(2);
  const std::int64_t* choice = a.integers(1);
  float *error = a.floats(3), *slope = a.floats(4), *found = a.floats(5);
  const Size n = a.sizes[1];
  const bool huber = a.numbers[0] != 0.0;
  for (Size row = 0; row < a.sizes[0]; ++row) {
    if (choice[row] < 0 || static_cast<Size>(choice[row]) >= n) return n;
    const float value = values[row * n + choice[row]] - target[row];
    const float limited = !huber ? value : value < -1.0f ? -1.0f : value > 1.0f ? 1.0f : value;
    error[row] = value;
    slope[row] = limited;
    found[row] = limited * (value - 0.5f * limited);
  }
  return 0;
}

// A gradient [rows], slope [rows], choices [rows] -> the gradient of the values [rows, n].
Size choice_error_back(const Kernels&, Given a) {
  const float *gradient = a.floats(0), *slope = a.floats(1);
  const std::int64_t* choice = a.integers(2);
  float* out = a.floats(3);
  const Size n = a.sizes[1];
  for (Size i = 0; i < a.sizes[0] * n; ++i) out[i] = 0.0f;
  for (Size row = 0; row < a.sizes[0]; ++row) out[row * n + choice[row]] = gradient[row] * slope[row];
  return 0;
}

// Outputs [rows, 1 + n] -> the first and the others without their mean [rows, n].
Size dueling(const Kernels&, Given a) {
  const float* outputs = a.floats(0);
  float* values = a.floats(1);
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row, outputs += n + 1, values += n) {
    float sum = 0.0f;
    for (Size i = 0; i < n; ++i) sum += outputs[1 + i];
    const float mean = sum / static_cast<float>(n);
    for (Size i = 0; i < n; ++i) values[i] = outputs[0] + outputs[1 + i] - mean;
  }
  return 0;
}

// A gradient [rows, n] -> that of the outputs [rows, 1 + n].
Size dueling_back(const Kernels&, Given a) {
  const float* gradient = a.floats(0);
  float* out = a.floats(1);
  const Size n = a.sizes[1];
  const float share = static_cast<float>(1.0 / static_cast<double>(n));
  for (Size row = 0; row < a.sizes[0]; ++row, gradient += n, out += n + 1) {
    float sum = 0.0f;
    for (Size i = 0; i < n; ++i) sum += gradient[i];
    out[0] = sum;
    for (Size i = 0; i < n; ++i) out[1 + i] = gradient[i] - sum * share;
  }
  return 0;
}

// The first of the largest values [n]; a NaN is the largest, as torch has it.
std::int64_t largest(const float* values, Size n) {
  Size most = 0;
  for (Size i = 1; i < n && values[most] == values[most]; ++i)
    if (values[i] > values[most] || values[i] != values[i]) most = i;
  return static_cast<std::int64_t>(most);
}

// Values [rows, n] -> the first of the largest, int64 [rows].
Size argmax(const Kernels&, Given a) {
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row) a.integers(1)[row] = largest(a.floats(0) + row * n, n);
  return 0;
}

// Values [rows, n], noise [rows, 1 + n], epsilon [1] -> the first of the largest values, int64 [rows]; of the largest
// noise in rows whose first number is above 1 - epsilon.
Size explore(const Kernels&, Given a) {
  const float* values = a.floats(0);
  const float* noise = a.floats(1);
  const float limit = 1.0f - a.floats(2)[0];
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row, values += n, noise += n + 1)
    a.integers(3)[row] = largest(noise[0] > limit ? noise + 1 : values, n);
  return 0;
}

// Values [rows, n], places [rows] -> the values at these places [rows].
Size gather(const Kernels&, Given a) {
  const Size n = a.sizes[1];
  for (Size row = 0; row < a.sizes[0]; ++row) {
    const std::int64_t place = a.integers(1)[row];
    if (place < 0 || static_cast<Size>(place) >= n) return n;
    a.floats(2)[row] = a.floats(0)[row * n + place];
  }
  return 0;
}

Size multiply(const Kernels&, Given a) {
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(2)[i] = a.floats(0)[i] * a.floats(1)[i];
  return 0;
}

Size add(const Kernels&, Given a) {
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(2)[i] = a.floats(0)[i] + a.floats(1)[i];
  return 0;
}

Size subtract(const Kernels&, Given a) {
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(2)[i] = a.floats(0)[i] - a.floats(1)[i];
  return 0;
}

Size scale(const Kernels&, Given a) {
  const float factor = static_cast<float>(a.numbers[0]);
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(1)[i] = a.floats(0)[i] * factor;
  return 0;
}

Size shift(const Kernels&, Given a) {
  const float by = static_cast<float>(a.numbers[0]);
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(1)[i] = a.floats(0)[i] + by;
  return 0;
}

Size magnitude(const Kernels&, Given a) {
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(1)[i] = std::fabs(a.floats(0)[i]);
  return 0;
}

Size fill(const Kernels&, Given a) {
  const float value = static_cast<float>(a.numbers[0]);
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(0)[i] = value;
  return 0;
}

Size sample(const Kernels& kernels, Given a) {
  kernels.sample(a.floats(0), a.floats(1), a.sizes[0], a.sizes[1], a.integers(2), a.floats(3));
  return 0;
}

Size choice(const Kernels& kernels, Given a) {
  const bool valid =
      kernels.choice(a.floats(0), a.integers(1), a.sizes[0], a.sizes[1], a.floats(2), a.floats(3), a.floats(4));
  return valid ? 0 : a.sizes[1];
}

Size choice_back(const Kernels& kernels, Given a) {
  kernels.choice_back(a.floats(0), a.integers(1), a.floats(2), a.floats(3), a.floats(4), a.sizes[0], a.sizes[1],
                      a.floats(5));
  return 0;
}

Size density(const Kernels& kernels, Given a) {
  kernels.density(a.floats(0), a.floats(1), a.floats(2), a.sizes[0], a.sizes[1], a.floats(3), a.floats(4), a.floats(5));
  return 0;
}

// As the kernel, with the gradient of the entropy, which is the same number in all rows; either gradient may be nullptr.
Size density_back(const Kernels& kernels, Given a) {
  const Size rows = a.sizes[0], n = a.sizes[1];
  const float *to_density = a.floats(2), *to_entropy = a.floats(3);
  float *to_mean = a.floats(4), *to_log_std = a.floats(5);
  if (to_density)
    kernels.density_back(a.floats(0), a.floats(1), to_density, rows, n, to_mean, to_log_std);
  else
    for (Size i = 0; i < n; ++i) to_log_std[i] = 0.0f;
  if (to_entropy) {
    float sum = 0.0f;
    for (Size row = 0; row < rows; ++row) sum += to_entropy[row];
    for (Size i = 0; i < n; ++i) to_log_std[i] += sum;
  }
  return 0;
}

Size surrogate(const Kernels& kernels, Given a) {
  kernels.surrogate(a.floats(0), a.floats(1), a.floats(2), a.sizes[0], static_cast<float>(a.numbers[0]), a.floats(3),
                    a.floats(4), a.floats(5), a.floats(6));
  return 0;
}

Size squash(const Kernels& kernels, Given a) {
  kernels.squash(a.floats(0), a.floats(1), a.sizes[0], a.sizes[1], static_cast<float>(a.numbers[0]),
                 static_cast<float>(a.numbers[1]), a.floats(2), a.floats(3));
  return 0;
}

Size squash_back(const Kernels& kernels, Given a) {
  kernels.squash_back(a.floats(0), a.floats(1), a.floats(2), a.floats(3), a.floats(4), a.sizes[0], a.sizes[1],
                      static_cast<float>(a.numbers[0]), static_cast<float>(a.numbers[1]), a.floats(5));
  return 0;
}

// First [rows, m] and second [rows, n] -> side by side [rows, m + n].
Size join(const Kernels&, Given a) {
  const Size m = a.sizes[1], n = a.sizes[2];
  const float *first = a.floats(0), *second = a.floats(1);
  float* out = a.floats(2);
  for (Size row = 0; row < a.sizes[0]; ++row) {
    for (Size i = 0; i < m; ++i) *out++ = first[row * m + i];
    for (Size i = 0; i < n; ++i) *out++ = second[row * n + i];
  }
  return 0;
}

// The last n columns of [rows, m + n].
Size join_back(const Kernels&, Given a) {
  const Size m = a.sizes[1], n = a.sizes[2];
  for (Size row = 0; row < a.sizes[0]; ++row)
    for (Size i = 0; i < n; ++i) a.floats(1)[row * n + i] = a.floats(0)[row * (m + n) + m + i];
  return 0;
}

// The smaller of two values [rows], and the first one's share of its gradient: 1, 0, or a half where they are equal.
Size smaller(const Kernels&, Given a) {
  const float *first = a.floats(0), *second = a.floats(1);
  for (Size i = 0; i < a.sizes[0]; ++i) {
    const bool is_first = first[i] <= second[i] || first[i] != first[i];
    a.floats(2)[i] = is_first ? first[i] : second[i];
    a.floats(3)[i] = first[i] < second[i] ? 1.0f : first[i] > second[i] ? 0.0f : 0.5f;
  }
  return 0;
}

// A gradient [rows] and the first one's share -> the gradients of both [rows].
Size smaller_back(const Kernels&, Given a) {
  for (Size i = 0; i < a.sizes[0]; ++i) {
    a.floats(2)[i] = a.floats(0)[i] * a.floats(1)[i];
    a.floats(3)[i] = a.floats(0)[i] - a.floats(2)[i];
  }
  return 0;
}

// exp of one number, for all rows.
Size spread_exp(const Kernels&, Given a) {
  const float value = static_cast<float>(std::exp(static_cast<double>(*a.floats(0))));
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(1)[i] = value;
  return 0;
}

// A number [1] and values [rows] -> their products [rows].
Size multiply_all(const Kernels&, Given a) {
  const float factor = *a.floats(0);
  for (Size i = 0; i < a.sizes[0]; ++i) a.floats(2)[i] = factor * a.floats(1)[i];
  return 0;
}

// A gradient [rows] and the values [rows] -> the gradient of the number [1].
Size multiply_all_back(const Kernels&, Given a) {
  double sum = 0.0;
  for (Size i = 0; i < a.sizes[0]; ++i) sum += static_cast<double>(a.floats(0)[i]) * a.floats(1)[i];
  *a.floats(2) = static_cast<float>(sum);
  return 0;
}

Size forward(const Kernels&, Given a) {
  a.network->forward(a.floats(0), a.sizes[0], a.floats(1), a.floats(2));
  return 0;
}

Size backward(const Kernels&, Given a) {
  a.network->backward(a.floats(0), a.sizes[0], a.floats(1), a.floats(2), a.floats(3), a.floats(4));
  return 0;
}

}  // namespace

const std::vector<Operation>& operations() {
  static const std::vector<Operation> found = {
      {"normalise", 4, 2, 1, false, normalise},
      {"standardise", 5, 1, 0, false, standardise},
      {"half_square", 4, 2, 0, false, half_square},
      {"half_square_back", 3, 2, 0, false, half_square_back},
      {"limited_error", 5, 2, 2, false, limited_error},
      {"agent_inputs", 3, 7, 0, false, agent_inputs},
      {"row_means", 2, 2, 0, false, row_means},
      {"choice_error", 6, 2, 1, false, choice_error},
      {"choice_error_back", 4, 2, 0, false, choice_error_back},
      {"dueling", 2, 2, 0, false, dueling},
      {"dueling_back", 2, 2, 0, false, dueling_back},
      {"argmax", 2, 2, 0, false, argmax},
      {"explore", 4, 2, 0, false, explore},
      {"gather", 3, 2, 0, false, gather},
      {"multiply", 3, 1, 0, false, multiply},
      {"add", 3, 1, 0, false, add},
      {"subtract", 3, 1, 0, false, subtract},
      {"scale", 2, 1, 1, false, scale},
      {"shift", 2, 1, 1, false, shift},
      {"magnitude", 2, 1, 0, false, magnitude},
      {"fill", 1, 1, 1, false, fill},
      {"sample", 4, 2, 0, false, sample},
      {"choice", 5, 2, 0, false, choice},
      {"choice_back", 6, 2, 0, false, choice_back},
      {"density", 6, 2, 0, false, density},
      {"density_back", 6, 2, 0, false, density_back},
      {"surrogate", 7, 1, 1, false, surrogate},
      {"squash", 4, 2, 2, false, squash},
      {"squash_back", 6, 2, 2, false, squash_back},
      {"join", 3, 3, 0, false, join},
      {"join_back", 2, 3, 0, false, join_back},
      {"smaller", 4, 1, 0, false, smaller},
      {"smaller_back", 4, 1, 0, false, smaller_back},
      {"spread_exp", 2, 1, 0, false, spread_exp},
      {"multiply_all", 3, 1, 0, false, multiply_all},
      {"multiply_all_back", 3, 1, 0, false, multiply_all_back},
      {"bound", 2, 1, 0, false, bound},
      {"bound_back", 3, 1, 0, false, bound_back},
      {"jitter", 3, 1, 2, false, jitter},
      {"dueling_quantiles", 2, 3, 0, false, dueling_quantiles},
      {"dueling_quantiles_back", 2, 3, 0, false, dueling_quantiles_back},
      {"quantile_means", 2, 2, 0, false, quantile_means},
      {"quantile_targets", 5, 3, 0, false, quantile_targets},
      {"quantile_error", 6, 3, 1, false, quantile_error},
      {"quantile_error_back", 4, 3, 0, false, quantile_error_back},
      {"forward", 3, 1, 0, true, forward},
      {"backward", 5, 1, 0, true, backward},
  };
  return found;
}

void check_arguments(const Operation& operation, std::size_t pointers, std::size_t sizes, std::size_t numbers,
                     bool has_network) {
  if (pointers == operation.pointers && sizes == operation.sizes && numbers == operation.numbers &&
      has_network == operation.has_network)
    return;
  throw std::invalid_argument(std::string(operation.name) + " got " + std::to_string(pointers) + " arrays, " +
                              std::to_string(sizes) + " sizes and " + std::to_string(numbers) + " numbers, expected " +
                              std::to_string(operation.pointers) + ", " + std::to_string(operation.sizes) + " and " +
                              std::to_string(operation.numbers) +
                              (operation.has_network ? ", and a network" : ", and no network"));
}

Program::Program(const Kernels& kernels, std::vector<Step> steps, std::size_t slots)
    : kernels_(kernels), steps_(std::move(steps)), slots_(slots) {
  for (const Step& step : steps_)
    for (const Place& place : step.places)
      if (place.slot >= static_cast<std::int64_t>(slots))
        throw std::invalid_argument("slot " + std::to_string(place.slot) + " of a program with " +
                                    std::to_string(slots));
}

std::size_t Program::run(const std::vector<std::uintptr_t>& slots) const {
  if (slots.size() != slots_)
    throw std::invalid_argument(std::to_string(slots.size()) + " addresses for a program with " +
                                std::to_string(slots_) + " slots");
  void* pointers[kMostPointers];
  for (const Step& step : steps_) {
    for (std::size_t i = 0; i < step.places.size(); ++i) {
      const Place& place = step.places[i];
      const std::uintptr_t base = place.slot < 0 ? 0 : slots[static_cast<std::size_t>(place.slot)];
      pointers[i] = reinterpret_cast<void*>(base + place.offset);
    }
    const std::size_t choices =
        step.operation->run(kernels_, {pointers, step.sizes.data(), step.numbers.data(), step.network});
    if (choices) return choices;
  }
  return 0;
}

}  // namespace penstock::learner
