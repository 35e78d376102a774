// Operations that a loss and its gradient consist of, each a function of addresses, sizes and numbers; and programs of
// them, which compute a loss again for other rows without returning to Python in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "network.hpp"

namespace penstock::learner {

constexpr std::size_t kMostPointers = 8;

// What an operation is called with. Which is which, `operations.cpp` says.
struct Arguments {
  void* const* pointers;
  const std::size_t* sizes;
  const double* numbers;
  const Network* network;

  float* floats(std::size_t i) const { return static_cast<float*>(pointers[i]); }
  double* doubles(std::size_t i) const { return static_cast<double*>(pointers[i]); }
  std::int64_t* integers(std::size_t i) const { return static_cast<std::int64_t*>(pointers[i]); }
};

struct Operation {
  const char* name;
  std::size_t pointers, sizes, numbers;
  bool has_network;
  // 0; or a number of choices, of which an action is none.
  std::size_t (*run)(const Kernels&, const Arguments&);
};

const std::vector<Operation>& operations();

// Throws std::invalid_argument unless the operation takes so much.
void check_arguments(const Operation&, std::size_t pointers, std::size_t sizes, std::size_t numbers, bool has_network);

// Where an operation of a program finds an array: in a slot that each run fills, or at an address that stays.
struct Place {
  std::int64_t slot;  // negative: `offset` is the address
  std::uintptr_t offset;
};

class Program {
 public:
  struct Step {
    const Operation* operation;
    std::vector<Place> places;
    std::vector<std::size_t> sizes;
    std::vector<double> numbers;
    const Network* network;
  };

  Program(const Kernels& kernels, std::vector<Step> steps, std::size_t slots);

  // Runs all steps, with the slots at these addresses; returns as an operation does, at the first that is not 0.
  std::size_t run(const std::vector<std::uintptr_t>& slots) const;

 private:
  const Kernels& kernels_;
  std::vector<Step> steps_;
  std::size_t slots_;
};

}  // namespace penstock::learner
