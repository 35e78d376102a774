// The module `_learner`: the kernels for Python, which passes the addresses of tensors' memory. penstock.tasks.model.nn
// checks shapes, types and layout before it calls.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace py = pybind11;
using penstock::learner::Activation;
using penstock::learner::Kernels;
using penstock::learner::Perceptron;

namespace {

// The levels that this processor runs, the fastest last.
std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> found = {&penstock::learner::base_kernels};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&penstock::learner::avx2_kernels);
  if (found.size() == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    found.push_back(&penstock::learner::avx512_kernels);
#endif
  return found;
}

const std::vector<const Kernels*>& levels() {
  static const std::vector<const Kernels*> found = runnable();
  return found;
}

const Kernels& level(std::size_t number) { return *levels().at(number); }

float* scratch(std::size_t floats) {
  thread_local std::vector<float> memory;
  if (memory.size() < floats) memory.resize(floats);
  return memory.data();
}

float* pointer(std::uintptr_t address) { return reinterpret_cast<float*>(address); }

// A perceptron whose parameters (weight, bias, weight, bias, ...) Python keeps alive at these addresses.
class Network {
 public:
  Network(std::size_t number, const std::vector<std::size_t>& widths, const std::vector<std::uintptr_t>& parameters,
          bool relu)
      : kernels_(level(number)), widths_(widths), relu_(relu) {
    if (widths.size() < 2 || parameters.size() != 2 * (widths.size() - 1))
      throw std::invalid_argument(std::to_string(widths.size()) + " widths and " + std::to_string(parameters.size()) +
                                  " addresses of parameters, expected a weight and a bias between two widths");
    for (std::size_t i = 0; i < parameters.size(); i += 2) {
      weights_.push_back(pointer(parameters[i]));
      biases_.push_back(pointer(parameters[i + 1]));
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

  void forward(std::uintptr_t inputs, std::size_t rows, std::uintptr_t saved, std::uintptr_t outputs) const {
    const Perceptron net = perceptron();
    kernels_.forward(net, pointer(inputs), rows, pointer(saved), pointer(outputs), scratch(kernels_.scratch_floats(net)));
  }

  void backward(std::uintptr_t inputs, std::size_t rows, std::uintptr_t saved, std::uintptr_t output_gradient,
                std::uintptr_t parameter_gradient, std::uintptr_t input_gradient) const {
    const Perceptron net = perceptron();
    kernels_.backward(net, pointer(inputs), rows, pointer(saved), pointer(output_gradient), pointer(parameter_gradient),
                      pointer(input_gradient), scratch(kernels_.scratch_floats(net)));
  }

 private:
  Perceptron perceptron() const {
    return {widths_.data(), weights_.data(), biases_.data(), weights_.size(),
            relu_ ? Activation::relu : Activation::tanh};
  }

  const Kernels& kernels_;
  std::vector<std::size_t> widths_;
  std::vector<const float*> weights_, biases_;
  bool relu_;
};

}  // namespace

PYBIND11_MODULE(_learner, module) {
  module.doc() = "Kernels of the learner; penstock.tasks.model.nn.kernels documents them.";
  std::vector<std::string> names;
  for (const Kernels* each : levels()) names.emplace_back(each->name);
  module.attr("LEVELS") = py::tuple(py::cast(names));
  py::class_<Network>(module, "Network")
      .def(py::init<std::size_t, const std::vector<std::size_t>&, const std::vector<std::uintptr_t>&, bool>())
      .def_property_readonly("inputs", &Network::inputs)
      .def_property_readonly("outputs", &Network::outputs)
      .def_property_readonly("parameters", &Network::parameters)
      .def_property_readonly("saved_floats", &Network::saved_floats)
      .def("forward", &Network::forward, py::call_guard<py::gil_scoped_release>())
      .def("backward", &Network::backward, py::call_guard<py::gil_scoped_release>());
  module.def("choice", [](std::size_t number, std::uintptr_t logits, std::uintptr_t action, std::size_t rows,
                          std::size_t n, std::uintptr_t log_probabilities, std::uintptr_t chosen,
                          std::uintptr_t entropy) {
    const auto* actions = reinterpret_cast<const std::int64_t*>(action);
    if (!level(number).choice(pointer(logits), actions, rows, n, pointer(log_probabilities), pointer(chosen),
                              pointer(entropy)))
      throw py::index_error("an action is none of the " + std::to_string(n) + " choices, which are numbered from 0");
  });
  module.def("choice_back", [](std::size_t number, std::uintptr_t log_probabilities, std::uintptr_t action,
                               std::uintptr_t entropy, std::uintptr_t to_chosen, std::uintptr_t to_entropy,
                               std::size_t rows, std::size_t n, std::uintptr_t to_logits) {
    level(number).choice_back(pointer(log_probabilities), reinterpret_cast<const std::int64_t*>(action),
                              pointer(entropy), pointer(to_chosen), pointer(to_entropy), rows, n, pointer(to_logits));
  });
  module.def("density", [](std::size_t number, std::uintptr_t mean, std::uintptr_t log_std, std::uintptr_t action,
                           std::size_t rows, std::size_t n, std::uintptr_t standardised, std::uintptr_t log_density,
                           std::uintptr_t entropy) {
    level(number).density(pointer(mean), pointer(log_std), pointer(action), rows, n, pointer(standardised),
                          pointer(log_density), pointer(entropy));
  });
  module.def("density_back", [](std::size_t number, std::uintptr_t standardised, std::uintptr_t log_std,
                                std::uintptr_t to_density, std::size_t rows, std::size_t n, std::uintptr_t to_mean,
                                std::uintptr_t to_log_std) {
    level(number).density_back(pointer(standardised), pointer(log_std), pointer(to_density), rows, n, pointer(to_mean),
                               pointer(to_log_std));
  });
  module.def("surrogate", [](std::size_t number, std::uintptr_t log_probability, std::uintptr_t behaviour,
                             std::uintptr_t advantage, std::size_t rows, double clip_range, std::uintptr_t result,
                             std::uintptr_t slope, std::uintptr_t divergence, std::uintptr_t is_clipped) {
    level(number).surrogate(pointer(log_probability), pointer(behaviour), pointer(advantage), rows,
                            static_cast<float>(clip_range), pointer(result), pointer(slope), pointer(divergence),
                            pointer(is_clipped));
  });
  module.def("squash", [](std::size_t number, std::uintptr_t outputs, std::uintptr_t noise, std::size_t rows,
                          std::size_t n, double low, double high, std::uintptr_t action, std::uintptr_t log_density) {
    level(number).squash(pointer(outputs), pointer(noise), rows, n, static_cast<float>(low), static_cast<float>(high),
                         pointer(action), pointer(log_density));
  });
  module.def("squash_back", [](std::size_t number, std::uintptr_t outputs, std::uintptr_t noise, std::uintptr_t action,
                               std::uintptr_t to_action, std::uintptr_t to_density, std::size_t rows, std::size_t n,
                               double low, double high, std::uintptr_t to_outputs) {
    level(number).squash_back(pointer(outputs), pointer(noise), pointer(action), pointer(to_action),
                              pointer(to_density), rows, n, static_cast<float>(low), static_cast<float>(high),
                              pointer(to_outputs));
  });
  module.def("norm", [](std::size_t number, std::uintptr_t values, std::size_t count) {
    return std::sqrt(level(number).square_sum(pointer(values), count));
  });
  module.def("adam", [](std::size_t number, std::uintptr_t params, std::uintptr_t gradient, std::uintptr_t mean,
                        std::uintptr_t square, std::uintptr_t step, std::size_t count, double rate,
                        double first_decay, double second_decay, double epsilon) {
    const float steps = *pointer(step) += 1.0f;
    const double first = 1.0 - std::pow(first_decay, steps), second = 1.0 - std::pow(second_decay, steps);
    level(number).adam(pointer(params), pointer(gradient), pointer(mean), pointer(square), count,
                       static_cast<float>(rate), static_cast<float>(first_decay),
                       static_cast<float>(second_decay), static_cast<float>(first),
                       static_cast<float>(std::sqrt(second)), static_cast<float>(epsilon));
  });
}
