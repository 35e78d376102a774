/// The kernels of a batch for a GPU's memory, one thread an environment; and PENSTOCK_LIBRARY as nvcc reads it.
///
/// Only nvcc includes this: `penstock.native.batch.cuda` compiles an environment's header with it. It has never run:
/// no machine that Penstock was tested on has a GPU.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "penstock/batch/kernels.hpp"

namespace penstock {

inline constexpr unsigned cuda_block = 128;

/// Stops the kernel if an environment cannot take its action; it would write where it likes.
template <Batchable E>
__device__ void require_valid(const void* actions, std::size_t env) {
  using Action = ActionSpace<E>;
  const auto* values = static_cast<const typename Action::Value*>(actions) + env * Action::size;
  for (std::size_t i = 0; i < Action::size; ++i)
    if (!surely_valid<Action>(values + i, 1)) __trap();
}

__device__ inline std::size_t environment_of_thread() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <Batchable E>
__global__ void step_kernel(BatchArrays batch, const void* actions, BatchStep out) {
  const std::size_t env = environment_of_thread();
  if (env >= batch.environments) return;
  require_valid<E>(actions, env);
  step_environment<E>(batch, actions, out, env);
}

template <Batchable E>
__global__ void step_round_kernel(BatchArrays batch, const void* actions, BatchRow out) {
  const std::size_t env = environment_of_thread();
  if (env >= batch.environments) return;
  require_valid<E>(actions, env);
  step_round_environment<E>(batch, actions, out, env);
}

template <Batchable E>
__global__ void begin_kernel(BatchArrays batch, const bool* chosen, void* observation) {
  const std::size_t env = environment_of_thread();
  if (env < batch.environments && chosen[env]) begin_environment<E>(batch, observation, env);
}

template <Batchable E>
__global__ void observe_kernel(BatchArrays batch, void* observation) {
  const std::size_t env = environment_of_thread();
  if (env < batch.environments) observe_environment<E>(batch, observation, env);
}

/// Queues a kernel on a stream of the batch's device; neither waits nor allocates, so a CUDA graph may contain it.
template <class... Argument>
const char* launch(void (*kernel)(BatchArrays, Argument...), const BatchArrays& batch, void* stream,
                   Argument... arguments) {
  // The thread's device is torch's too: it is left as it was.
  int before = 0;
  cudaError_t error = cudaGetDevice(&before);
  if (error == cudaSuccess && before != batch.device) error = cudaSetDevice(batch.device);
  if (error == cudaSuccess) {
    const auto blocks = static_cast<unsigned>((batch.environments + cuda_block - 1) / cuda_block);
    kernel<<<blocks, cuda_block, 0, static_cast<cudaStream_t>(stream)>>>(batch, arguments...);
    error = cudaGetLastError();
    if (before != batch.device) cudaSetDevice(before);
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <Batchable E>
const BatchKernels* cuda_kernels() {
  static const std::string layout = batch_layout<E>();
  static const BatchKernels kernels{
      .layout = layout.c_str(),
      .step = [](const BatchArrays* batch, const void* actions, const BatchStep* out, void* stream) -> const char* {
        return launch(&step_kernel<E>, *batch, stream, actions, *out);
      },
      .step_round = [](const BatchArrays* batch, const void* actions, const BatchRow* out, void* stream) -> const char* {
        return launch(&step_round_kernel<E>, *batch, stream, actions, *out);
      },
      .begin = [](const BatchArrays* batch, const bool* chosen, void* observation, void* stream) -> const char* {
        return launch(&begin_kernel<E>, *batch, stream, chosen, observation);
      },
      .observe = [](const BatchArrays* batch, void* observation, void* stream) -> const char* {
        return launch(&observe_kernel<E>, *batch, stream, observation);
      },
  };
  return &kernels;
}

/// Returns the kernels of the environment with that id, or nullptr if it is none of these or not Batchable.
template <class... E>
const BatchKernels* cuda_kernels_of(std::string_view id) {
  const BatchKernels* found = nullptr;
  const auto look_at = [&]<class Each>(std::type_identity<Each>) {
    if constexpr (Batchable<Each>)
      if (id == Each::info.id) found = cuda_kernels<Each>();
  };
  (look_at(std::type_identity<E>{}), ...);
  return found;
}

}  // namespace penstock

#define PENSTOCK_LIBRARY(...)                                                                           \
  extern "C" __attribute__((visibility("default"))) const ::penstock::BatchKernels* penstock_cuda_kernels( \
      const char* id) {                                                                                 \
    return ::penstock::cuda_kernels_of<__VA_ARGS__>(id);                                                \
  }
