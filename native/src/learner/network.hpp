// A perceptron at fixed addresses, with the kernels of one level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace penstock::learner {

inline float* floats_at(std::uintptr_t address) { return reinterpret_cast<float*>(address); }

// A perceptron whose parameters (weight, bias, weight, bias, ...) Python keeps alive at these addresses.
class Network {
 public:
  Network(const Kernels& kernels, const std::vector<std::size_t>& widths, const std::vector<std::uintptr_t>& parameters,
          bool relu)
      : kernels_(kernels), widths_(widths), relu_(relu) {
    if (widths.size() < 2 || parameters.size() != 2 * (widths.size() - 1))
      throw std::invalid_argument(std::to_string(widths.size()) + " widths and " + std::to_string(parameters.size()) +
                                  " addresses of parameters, expected a weight and a bias between two widths");
    for (std::size_t i = 0; i < parameters.size(); i += 2) {
      weights_.push_back(floats_at(parameters[i]));
      biases_.push_back(floats_at(parameters[i + 1]));
    }
  }

  std::size_t inputs() const { return widths_.front(); }
  std::size_t outputs() const { return widths_.back(); }
  std::size_t saved_floats() const { return kernels_.saved_floats(perceptron()); }
  std::size_t parameters() const {
    std::size_t floats = 0;
    for (std::size_t i = 0; i + 1 < widths_.size(); ++i) floats += (widths_[i] + 1) * widths_[i + 1];
    return floats;
  }

  void forward(const float* inputs, std::size_t rows, float* saved, float* outputs) const {
    const Perceptron net = perceptron();
    kernels_.forward(net, inputs, rows, saved, outputs, scratch(net));
  }

  void backward(const float* inputs, std::size_t rows, const float* saved, const float* output_gradient,
                float* parameter_gradient, float* input_gradient) const {
    const Perceptron net = perceptron();
    kernels_.backward(net, inputs, rows, saved, output_gradient, parameter_gradient, input_gradient, scratch(net));
  }

 private:
  Perceptron perceptron() const {
    return {widths_.data(), weights_.data(), biases_.data(), weights_.size(),
            relu_ ? Activation::relu : Activation::tanh};
  }

  float* scratch(const Perceptron& net) const {
    thread_local std::vector<float> memory;
    const std::size_t needed = kernels_.scratch_floats(net);
    if (memory.size() < needed) memory.resize(needed);
    return memory.data();
  }

  const Kernels& kernels_;
  std::vector<std::size_t> widths_;
  std::vector<const float*> weights_, biases_;
  bool relu_;
};

}  // namespace penstock::learner
