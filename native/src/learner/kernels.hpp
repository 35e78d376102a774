// The learner's kernels: perceptrons, forward and backward, and optimizer steps, compiled once for each instruction set.
//
// A kernel is a function of its arguments: it allocates nothing and starts no thread. A row of a perceptron's output does
// not depend on the number of rows, and a gradient depends on the rows alone, so bits depend on the level and no caller.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::learner {

enum class Activation { tanh, relu };

// A perceptron: layers map widths[i] to widths[i + 1] numbers, with the activation between them and none at the end.
// weights[i] is [widths[i + 1], widths[i]], row-major; biases[i] is [widths[i + 1]].
struct Perceptron {
  const std::size_t* widths;
  const float* const* weights;
  const float* const* biases;
  std::size_t layers;
  Activation activation;
};

// All arrays are float32, contiguous and row-major.
struct Kernels {
  const char* name;
  // Floats of scratch memory that `forward` and `backward` need for a perceptron.
  std::size_t (*scratch_floats)(const Perceptron&);
  // Floats a row that `forward` saves for `backward`: hidden layers' outputs, each padded to whole vectors.
  std::size_t (*saved_floats)(const Perceptron&);
  // inputs [rows, widths[0]] -> outputs [rows, widths[layers]]; saved [rows * saved_floats], 64-byte aligned.
  void (*forward)(const Perceptron&, const float* inputs, std::size_t rows, float* saved, float* outputs, float* scratch);
  // output_gradient [rows, widths[layers]] -> parameter_gradient (each layer's weight, then its bias; nullptr: not wanted)
  // and input_gradient [rows, widths[0]] (nullptr: not wanted).
  void (*backward)(const Perceptron&, const float* inputs, std::size_t rows, const float* saved,
                   const float* output_gradient, float* parameter_gradient, float* input_gradient, float* scratch);
  // Adds the squares of n numbers, in double precision.
  double (*square_sum)(const float* values, std::size_t n);
  // A step of Adam in place. The corrections are those of its moments' bias.
  void (*adam)(float* params, const float* gradient, float* mean, float* square, std::size_t n, float rate,
               float first_decay, float second_decay, float first_correction, float second_correction_root, float epsilon);
  // logits and Gumbel noise [rows, n] -> the action that has the largest sum [rows], and its log-probability [rows], to the
  // bit as `choice` computes it.
  void (*sample)(const float* logits, const float* noise, std::size_t rows, std::size_t n, std::int64_t* action,
                 float* chosen);
  // logits [rows, n], action [rows] -> log_probabilities [rows, n], that of the action `chosen` [rows], entropy [rows].
  // False: an action is none of n.
  bool (*choice)(const float* logits, const std::int64_t* action, std::size_t rows, std::size_t n,
                 float* log_probabilities, float* chosen, float* entropy);
  // Gradients of `chosen` and of the entropy, either may be nullptr -> to_logits [rows, n].
  void (*choice_back)(const float* log_probabilities, const std::int64_t* action, const float* entropy,
                      const float* to_chosen, const float* to_entropy, std::size_t rows, std::size_t n,
                      float* to_logits);
  // A normal distribution: mean, action [rows, n], log_std [n] -> standardised [rows, n], log_density [rows],
  // entropy [rows], the same for all.
  void (*density)(const float* mean, const float* log_std, const float* action, std::size_t rows, std::size_t n,
                  float* standardised, float* log_density, float* entropy);
  // to_density [rows] -> to_mean [rows, n], to_log_std [n].
  void (*density_back)(const float* standardised, const float* log_std, const float* to_density, std::size_t rows,
                       std::size_t n, float* to_mean, float* to_log_std);
  // Log-probabilities and advantages [rows] -> the clipped surrogate, its slope in the log-probability, the divergence's
  // estimate, and 1 where the ratio is beyond the range: [rows] each.
  void (*surrogate)(const float* log_probability, const float* behaviour, const float* advantage, std::size_t rows,
                    float clip_range, float* result, float* slope, float* divergence, float* is_clipped);
  // Mean and logarithm of the deviation, side by side in outputs [rows, 2 n], the latter within low and high, and noise
  // [rows, n] -> the action squashed by tanh [rows, n], log_density [rows].
  void (*squash)(const float* outputs, const float* noise, std::size_t rows, std::size_t n, float low, float high,
                 float* action, float* log_density);
  // to_action [rows, n] and to_density [rows], either may be nullptr -> to_outputs [rows, 2 n].
  void (*squash_back)(const float* outputs, const float* noise, const float* action, const float* to_action,
                      const float* to_density, std::size_t rows, std::size_t n, float low, float high,
                      float* to_outputs);
};

extern const Kernels base_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

}  // namespace penstock::learner
