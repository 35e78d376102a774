// The module `_learner`: the kernels for Python, which passes the addresses of tensors' memory. penstock.tasks.model.nn
// checks shapes, types and layout before it calls.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../interpreter_lock.hpp"
#include "kernels.hpp"
#include "network.hpp"
#include "operations.hpp"

namespace py = pybind11;
using namespace penstock::learner;

namespace {

// The levels that this processor runs, the fastest last.
std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> found = {&base_kernels};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&avx2_kernels);
  if (found.size() == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    found.push_back(&avx512_kernels);
#endif
  return found;
}

const std::vector<const Kernels*>& levels() {
  static const std::vector<const Kernels*> found = runnable();
  return found;
}

const Kernels& level(std::size_t number) { return *levels().at(number); }

using Addresses = std::vector<std::uintptr_t>;
using Sizes = std::vector<std::size_t>;
using Numbers = std::vector<double>;

void refuse_action_if(std::size_t choices) {
  if (choices)
    throw py::index_error("an action is none of the " + std::to_string(choices) +
                          " choices, which are numbered from 0");
}

// Products that take some 20 us: each release of Python's lock wakes a thread that waits for it, and may have to wait for
// that one in turn.
constexpr std::size_t kWorthReleasing = 1 << 19;
// An element of an operation other than a network's may take a logarithm.
constexpr std::size_t kProductsAnElement = 64;

// Calls, without Python's lock if that is worth it.
template <class Call>
void released_if_long(std::size_t work, Call&& call) {
  if (work < kWorthReleasing) {
    call();
    return;
  }
  const penstock::Unlocked released;
  call();
}

void call(std::size_t number, std::size_t operation, const Addresses& addresses, const Sizes& sizes,
          const Numbers& numbers, const Network* network) {
  const Operation& found = operations().at(operation);
  check_arguments(found, addresses.size(), sizes.size(), numbers.size(), network != nullptr);
  void* pointers[kMostPointers];
  for (std::size_t i = 0; i < addresses.size(); ++i) pointers[i] = reinterpret_cast<void*>(addresses[i]);
  std::size_t work = network ? network->parameters() : kProductsAnElement;
  for (const std::size_t size : sizes) work *= std::max<std::size_t>(size, 1);
  std::size_t choices = 0;
  released_if_long(work, [&] { choices = found.run(level(number), {pointers, sizes.data(), numbers.data(), network}); });
  refuse_action_if(choices);
}

// Operation, places (slot and offset), sizes, numbers, network.
using StepTuple = std::tuple<std::size_t, std::vector<std::pair<std::int64_t, std::uintptr_t>>, Sizes, Numbers,
                             const Network*>;

Program make_program(std::size_t number, const std::vector<StepTuple>& given, std::size_t slots) {
  std::vector<Program::Step> steps;
  for (const auto& [operation, places, sizes, numbers, network] : given) {
    const Operation& found = operations().at(operation);
    check_arguments(found, places.size(), sizes.size(), numbers.size(), network != nullptr);
    Program::Step step{&found, {}, sizes, numbers, network};
    for (const auto& [slot, offset] : places) step.places.push_back({slot, offset});
    steps.push_back(std::move(step));
  }
  return Program(level(number), std::move(steps), slots);
}

}  // namespace

PYBIND11_MODULE(_learner, module) {
  module.doc() = "Kernels of the learner; penstock.tasks.model.nn.kernels documents them.";
  std::vector<std::string> names;
  for (const Kernels* each : levels()) names.emplace_back(each->name);
  module.attr("LEVELS") = py::tuple(py::cast(names));
  py::dict numbered;
  for (std::size_t i = 0; i < operations().size(); ++i) numbered[operations()[i].name] = i;
  module.attr("OPERATIONS") = numbered;
  py::class_<Network>(module, "Network")
      .def(py::init([](std::size_t number, const Sizes& widths, const Addresses& parameters, bool relu) {
        return Network(level(number), widths, parameters, relu);
      }))
      .def_property_readonly("inputs", &Network::inputs)
      .def_property_readonly("outputs", &Network::outputs)
      .def_property_readonly("parameters", &Network::parameters)
      .def_property_readonly("saved_floats", &Network::saved_floats)
      .def(
          "forward",
          [](const Network& network, std::uintptr_t inputs, std::size_t rows, std::uintptr_t saved,
             std::uintptr_t outputs) {
            released_if_long(rows * network.parameters(), [&] {
              network.forward(floats_at(inputs), rows, floats_at(saved), floats_at(outputs));
            });
          });
  module.def("call", call);
  py::class_<Program>(module, "Program")
      .def(py::init(&make_program), py::keep_alive<1, 3>())
      .def("run", [](const Program& program, const Addresses& slots) {
        std::size_t choices;
        {
          const penstock::Unlocked released;
          choices = program.run(slots);
        }
        refuse_action_if(choices);
      });
  module.def("norm", [](std::size_t number, std::uintptr_t values, std::size_t count) {
    return std::sqrt(level(number).square_sum(floats_at(values), count));
  });
  module.def("adam", [](std::size_t number, std::uintptr_t params, std::uintptr_t gradient, std::uintptr_t mean,
                        std::uintptr_t square, std::uintptr_t step, std::size_t count, double rate,
                        double first_decay, double second_decay, double epsilon) {
    const float steps = *floats_at(step) += 1.0f;
    const double first = 1.0 - std::pow(first_decay, steps), second = 1.0 - std::pow(second_decay, steps);
    level(number).adam(floats_at(params), floats_at(gradient), floats_at(mean), floats_at(square), count,
                       static_cast<float>(rate), static_cast<float>(first_decay),
                       static_cast<float>(second_decay), static_cast<float>(first),
                       static_cast<float>(std::sqrt(second)), static_cast<float>(epsilon));
  });
}
