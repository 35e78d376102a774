// The kernels' text. Each instruction set's file includes it, with LANES floats a vector and the table's name in TABLE.
//
// Everything here has internal linkage, and no inline function of the standard library is called: the linker would keep
// one of the copies that files with different instruction sets contain, maybe the one that this processor can't run.
#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace penstock::learner {
namespace {

using Size = std::size_t;
// Unaligned, and allowed to alias the floats that it is loaded from.
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr Size kRowsAtOnce = ROWS_AT_ONCE;  // rows of a tile, whose sums stay in registers
constexpr Size kChunk = 128;                // rows whose activations stay in the caches

constexpr Size padded(Size n) { return (n + LANES - 1) / LANES * LANES; }
inline const Vector& load(const float* at) { return *reinterpret_cast<const Vector*>(at); }
inline Vector& at(float* where) { return *reinterpret_cast<Vector*>(where); }
inline Vector splat(float value) { return value - Vector{}; }
inline Size least(Size a, Size b) { return a < b ? a : b; }

// tanh to 3.3e-7 of its value: an odd rational function, fitted to the least relative error from -7.9 to 7.9.
template <class Number>
inline Number tanh_of(Number x) {
  const auto splat = [](float value) { return value - Number{}; };
  const Number limit = splat(7.9f);
  x = x > limit ? limit : x;  // a NaN stays one
  x = x < -limit ? -limit : x;
  const Number square = x * x;
  Number above = splat(2.4106258655898216e-11f);
  above = above * square + splat(-1.4906682110904512e-08f);
  above = above * square + splat(9.939340998244006e-06f);
  above = above * square + splat(0.0029921147506684065f);
  above = above * square + splat(0.12984926998615265f);
  above = above * square + splat(1.0f);
  Number below = splat(0.0002380892401561141f);
  below = below * square + splat(0.024053167551755905f);
  below = below * square + splat(0.4631824493408203f);
  below = below * square + splat(1.0f);
  return x * (above / below);
}

inline Vector activate(Vector x, Activation activation) {
  if (activation == Activation::tanh) return tanh_of(x);
  const Vector zero{};
  return x < zero ? zero : x;
}

// C[r, :] = A[r, :] B for `Rows` rows and `Columns` vectors; every sum runs over the terms in order.
template <Size Rows, Size Columns, bool Transposed>
inline void multiply_tile(const float* a, Size a_stride, const float* b, Size b_stride, Size terms,
                          const float* start, float* c, Size c_stride, bool adds, int activation) {
  Vector sums[Rows][Columns];
  for (Size row = 0; row < Rows; ++row)
    for (Size column = 0; column < Columns; ++column)
      sums[row][column] = adds    ? load(c + row * c_stride + column * LANES)
                          : start ? load(start + column * LANES)
                                  : Vector{};
  for (Size term = 0; term < terms; ++term) {
    Vector right[Columns];
    for (Size column = 0; column < Columns; ++column) right[column] = load(b + term * b_stride + column * LANES);
    for (Size row = 0; row < Rows; ++row) {
      const Vector left = splat(Transposed ? a[term * a_stride + row] : a[row * a_stride + term]);
      for (Size column = 0; column < Columns; ++column) sums[row][column] += left * right[column];
    }
  }
  for (Size row = 0; row < Rows; ++row)
    for (Size column = 0; column < Columns; ++column) {
      Vector sum = sums[row][column];
      if (activation >= 0) sum = activate(sum, static_cast<Activation>(activation));
      at(c + row * c_stride + column * LANES) = sum;
    }
}

template <Size Rows, bool Transposed>
inline void multiply_rows(const float* a, Size a_stride, const float* b, Size b_stride, Size terms, const float* start,
                          float* c, Size c_stride, Size columns, bool adds, int activation) {
  Size column = 0;
  for (; column + 2 * LANES <= columns; column += 2 * LANES)
    multiply_tile<Rows, 2, Transposed>(a, a_stride, b + column, b_stride, terms, start ? start + column : nullptr,
                                       c + column, c_stride, adds, activation);
  for (; column < columns; column += LANES)
    multiply_tile<Rows, 1, Transposed>(a, a_stride, b + column, b_stride, terms, start ? start + column : nullptr,
                                       c + column, c_stride, adds, activation);
}

// C [rows, columns] = A B, or A' B if A is Transposed ([terms, rows]); plus `start` [columns], or plus what C holds.
// `columns` are whole vectors, in B, `start` and C.
template <bool Transposed>
void multiply(const float* a, Size a_stride, const float* b, Size b_stride, Size terms, const float* start, float* c,
              Size c_stride, Size rows, Size columns, bool adds, int activation) {
  const Size step = Transposed ? 1 : a_stride;
  Size row = 0;
  for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce)
    multiply_rows<kRowsAtOnce, Transposed>(a + row * step, a_stride, b, b_stride, terms, start, c + row * c_stride,
                                           c_stride, columns, adds, activation);
  for (; row + 4 <= rows; row += 4)
    multiply_rows<4, Transposed>(a + row * step, a_stride, b, b_stride, terms, start, c + row * c_stride, c_stride,
                                 columns, adds, activation);
  for (; row < rows; ++row)
    multiply_rows<1, Transposed>(a + row * step, a_stride, b, b_stride, terms, start, c + row * c_stride, c_stride,
                                 columns, adds, activation);
}

void copy_rows(const float* from, Size from_stride, float* to, Size to_stride, Size rows, Size columns) {
  for (Size row = 0; row < rows; ++row) {
    for (Size column = 0; column < columns; ++column) to[row * to_stride + column] = from[row * from_stride + column];
    for (Size column = columns; column < to_stride; ++column) to[row * to_stride + column] = 0.0f;
  }
}

void clear(float* values, Size n) {
  for (Size i = 0; i < n; ++i) values[i] = 0.0f;
}

// to [columns, padded(rows)] = from [rows, columns], transposed.
void transpose(const float* from, Size from_stride, float* to, Size to_stride, Size rows, Size columns) {
  for (Size first = 0; first < columns; first += 8)
    for (Size row = 0; row < rows; ++row)
      for (Size column = first; column < least(first + 8, columns); ++column)
        to[column * to_stride + row] = from[row * from_stride + column];
  if (to_stride > rows)
    for (Size column = 0; column < columns; ++column)
      for (Size row = rows; row < to_stride; ++row) to[column * to_stride + row] = 0.0f;
}

Size widest(const Perceptron& net) {
  Size found = 0;
  for (Size i = 0; i <= net.layers; ++i) found = padded(net.widths[i]) > found ? padded(net.widths[i]) : found;
  return found;
}

// Packed weights of every layer (either way round), padded biases, the gradient of every layer, two chunks of rows.
Size weight_floats(const Perceptron& net, Size layer) {
  const Size in = padded(net.widths[layer]), out = padded(net.widths[layer + 1]);
  return in * out;
}

Size scratch_floats(const Perceptron& net) {
  Size weights = 0, biases = 0;
  for (Size i = 0; i < net.layers; ++i) {
    weights += weight_floats(net, i);
    biases += padded(net.widths[i + 1]);
  }
  return 2 * (weights + biases) + 2 * kChunk * widest(net);
}

Size saved_floats(const Perceptron& net) {
  Size floats = 0;
  for (Size i = 1; i < net.layers; ++i) floats += padded(net.widths[i]);
  return floats;
}

void forward(const Perceptron& net, const float* inputs, Size rows, float* saved, float* outputs, float* scratch) {
  const Size last = net.layers - 1;
  float* weights = scratch;
  for (Size i = 0; i < net.layers; ++i) {
    const Size in = net.widths[i], out = net.widths[i + 1];
    transpose(net.weights[i], in, weights, padded(out), out, in);
    weights += weight_floats(net, i);
  }
  float* biases = weights;
  for (Size i = 0; i < net.layers; ++i) {
    copy_rows(net.biases[i], 0, weights, padded(net.widths[i + 1]), 1, net.widths[i + 1]);
    weights += padded(net.widths[i + 1]);
  }
  float* chunk_outputs = weights;
  const Size out = net.widths[net.layers], out_stride = padded(out);
  for (Size first = 0; first < rows; first += kChunk) {
    const Size count = least(kChunk, rows - first);
    const float* from = inputs + first * net.widths[0];
    Size from_stride = net.widths[0];
    const float *weight = scratch, *bias = biases;
    float* layer_saved = saved;
    for (Size i = 0; i < last; ++i) {
      const Size width = padded(net.widths[i + 1]);
      float* to = layer_saved + first * width;
      multiply<false>(from, from_stride, weight, width, net.widths[i], bias, to, width, count, width, false,
                      static_cast<int>(net.activation));
      from = to;
      from_stride = width;
      layer_saved += rows * width;
      weight += weight_floats(net, i);
      bias += width;
    }
    float* to = out == out_stride ? outputs + first * out : chunk_outputs;
    multiply<false>(from, from_stride, weight, out_stride, net.widths[last], bias, to, out_stride, count, out_stride,
                    false, -1);
    if (to == chunk_outputs)
      for (Size row = 0; row < count; ++row)
        for (Size column = 0; column < out; ++column)
          outputs[(first + row) * out + column] = chunk_outputs[row * out_stride + column];
  }
}

// gradient *= the activation's slope, which follows from its output.
void undo_activation(float* gradient, const float* output, Size n, Activation activation) {
  if (activation == Activation::tanh) {
    for (Size i = 0; i < n; i += LANES) {
      const Vector y = load(output + i);
      at(gradient + i) = load(gradient + i) * (splat(1.0f) - y * y);
    }
    return;
  }
  const Vector zero{};
  for (Size i = 0; i < n; i += LANES) at(gradient + i) = load(output + i) > zero ? load(gradient + i) : zero;
}

void backward(const Perceptron& net, const float* inputs, Size rows, const float* saved, const float* output_gradient,
              float* parameter_gradient, float* input_gradient, float* scratch) {
  // The first layer's gradient is summed transposed: its inputs are not padded.
  float* weights = scratch;
  for (Size i = 0; i < net.layers; ++i) {
    const Size in = net.widths[i], out = net.widths[i + 1];
    if (i > 0 || input_gradient) copy_rows(net.weights[i], in, weights, padded(in), out, in);
    weights += weight_floats(net, i);
  }
  float* sums = weights;
  Size sum_floats = 0;
  for (Size i = 0; i < net.layers; ++i) sum_floats += weight_floats(net, i) + padded(net.widths[i + 1]);
  clear(sums, sum_floats);
  float* here = sums + sum_floats;
  float* below = here + kChunk * widest(net);
  const Size out = net.widths[net.layers];
  for (Size first = 0; first < rows; first += kChunk) {
    const Size count = least(kChunk, rows - first);
    copy_rows(output_gradient + first * out, out, here, padded(out), count, out);
    const float* weight = weights;
    float* sum = sums + sum_floats;
    const float* layer_saved = saved + rows * saved_floats(net);
    for (Size i = net.layers; i-- > 0;) {
      const Size in_stride = padded(net.widths[i]), out_stride = padded(net.widths[i + 1]);
      weight -= weight_floats(net, i);
      sum -= weight_floats(net, i) + out_stride;
      float* bias_sum = sum + weight_floats(net, i);
      if (i) layer_saved -= rows * in_stride;
      const float* from = i ? layer_saved + first * in_stride : inputs + first * net.widths[0];
      if (parameter_gradient) {
        if (i)
          multiply<true>(here, out_stride, from, in_stride, count, nullptr, sum, in_stride, net.widths[i + 1],
                         in_stride, true, -1);
        else
          multiply<true>(from, net.widths[0], here, out_stride, count, nullptr, sum, out_stride, net.widths[0],
                         out_stride, true, -1);
        for (Size column = 0; column < out_stride; column += LANES) {
          Vector total = load(bias_sum + column);
          for (Size row = 0; row < count; ++row) total += load(here + row * out_stride + column);
          at(bias_sum + column) = total;
        }
      }
      if (!i && !input_gradient) break;
      multiply<false>(here, out_stride, weight, in_stride, net.widths[i + 1], nullptr, below, in_stride, count,
                      in_stride, false, -1);
      if (i)
        undo_activation(below, from, count * in_stride, net.activation);
      else
        for (Size row = 0; row < count; ++row)
          for (Size column = 0; column < net.widths[0]; ++column)
            input_gradient[(first + row) * net.widths[0] + column] = below[row * in_stride + column];
      float* swapped = here;
      here = below;
      below = swapped;
    }
  }
  if (!parameter_gradient) return;
  float* sum = sums;
  for (Size i = 0; i < net.layers; ++i) {
    const Size in = net.widths[i], out_width = net.widths[i + 1];
    if (i)
      for (Size row = 0; row < out_width; ++row)
        for (Size column = 0; column < in; ++column)
          parameter_gradient[row * in + column] = sum[row * padded(in) + column];
    else
      for (Size row = 0; row < out_width; ++row)
        for (Size column = 0; column < in; ++column)
          parameter_gradient[row * in + column] = sum[column * padded(out_width) + row];
    parameter_gradient += in * out_width;
    sum += weight_floats(net, i);
    for (Size column = 0; column < out_width; ++column) parameter_gradient[column] = sum[column];
    parameter_gradient += out_width;
    sum += padded(out_width);
  }
}

double square_sum(const float* values, Size n) {
  double sums[8] = {};
  Size i = 0;
  for (; i + 8 <= n; i += 8)
    for (Size lane = 0; lane < 8; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  for (Size lane = 0; i < n; ++i, ++lane) {
    const double value = values[i];
    sums[lane] += value * value;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The root through __builtin_sqrtf: with -fno-math-errno it becomes the processor's instruction, vectors of it included.
void adam(float* params, const float* gradient, float* mean, float* square, Size n, float rate,
          float first_decay, float second_decay, float first_correction, float second_correction_root, float epsilon) {
  const float step = rate / first_correction;
  const float root_scale = 1.0f / second_correction_root;
  for (Size i = 0; i < n; ++i) {
    const float slope = gradient[i];
    const float first = mean[i] + (1.0f - first_decay) * (slope - mean[i]);
    const float second = second_decay * square[i] + (1.0f - second_decay) * (slope * slope);
    mean[i] = first;
    square[i] = second;
    params[i] -= step * first / (__builtin_sqrtf(second) * root_scale + epsilon);
  }
}

#include "heads.inl"

}  // namespace

extern const Kernels TABLE = {NAME,   scratch_floats, saved_floats, forward, backward,     square_sum, adam,       sample,
                              choice, choice_back,    density,      density_back, surrogate,  squash,     squash_back};

}  // namespace penstock::learner
