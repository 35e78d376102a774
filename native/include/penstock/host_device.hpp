/// PENSTOCK_HOST_DEVICE, the mark of a function that a GPU runs too, and PENSTOCK_FAIL.
///
/// The pool needs neither: the host's compiler sees through both. nvcc compiles a marked function twice, and a function
/// without the mark for the host alone, unless it is constexpr. So an environment that a GPU shall step marks reset, step,
/// observe, action_mask, and what they call.
#pragma once

#include <stdexcept>

#if defined(__CUDACC__)
#define PENSTOCK_HOST_DEVICE __host__ __device__
#else
#define PENSTOCK_HOST_DEVICE
#endif

/// Marks a function of once an episode: inlined into each kind of step, it costs the host's compiler most of its time. On a
/// GPU a call would cost registers.
#if defined(__CUDACC__)
#define PENSTOCK_APART_ON_HOST
#else
#define PENSTOCK_APART_ON_HOST [[gnu::noinline]]
#endif

/// Gives a reset or a step up: throws std::runtime_error(message). A GPU has no exceptions: there it stops the kernel, and
/// the process gets an error of CUDA's without the message, at the latest when it waits for the device.
#if defined(__CUDA_ARCH__)
#define PENSTOCK_FAIL(message) __trap()
#else
#define PENSTOCK_FAIL(message) throw std::runtime_error(message)
#endif
