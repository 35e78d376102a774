/// Steps several environments of one configuration at once, with one instruction for many of them (AVX2 or AVX-512,
/// chosen when the pool is made). An environment opts in by `step_group`; what it computes must be the bits of `step`.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "penstock/env/environment.hpp"

// The library's bounds that sine_cosine.hpp relies on are glibc's; the instruction sets are those of x86.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__CUDACC__)
#define PENSTOCK_HAS_SIMD 1
#else
#define PENSTOCK_HAS_SIMD 0
#endif

namespace penstock {

/// Environments that are stepped at once: four registers of AVX-512, so that one waits while another computes.
inline constexpr std::size_t group_size = 32;

/// A number for each of them.
using GroupValues = std::array<double, group_size>;

template <class E>
using Group = std::array<E*, group_size>;

/// Returns a choice as a double, for use in `step_group`: AVX2 can't convert integers of 64 bits, and the compiler would
/// do it one by one. Choices are below 2^52, whose double has them as its last bits.
[[gnu::always_inline]] inline double choice_value(std::int64_t choice) {
  return std::bit_cast<double>(choice + std::bit_cast<std::int64_t>(0x1p52)) - 0x1p52;
}

/// An environment of discrete actions with `static bool can_step_group(const Config&)`, and with `static bool
/// step_group(const Group<E>&, const std::int64_t* actions, std::array<StepOf<E>, group_size>&)`, which is
/// `[[gnu::always_inline]]`, as everything that it calls. It returns false, and changes nothing, where one of the
/// environments fails: each is then stepped alone, so that the others go on.
template <class E>
concept StepsInGroups = requires(const Group<E>& group, const std::int64_t* actions,
                                 std::array<StepOf<E>, group_size>& steps, const typename E::Config& config) {
  { E::step_group(group, actions, steps) } -> std::same_as<bool>;
  { E::can_step_group(config) } -> std::same_as<bool>;
};

template <class E>
using GroupStepper = bool (*)(const Group<E>&, const std::int64_t* actions, std::array<StepOf<E>, group_size>&);

#if PENSTOCK_HAS_SIMD
[[nodiscard]] inline bool runs_avx2() noexcept { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

[[nodiscard]] inline bool runs_avx512() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

template <StepsInGroups E>
[[gnu::target("avx2,fma")]] bool step_group_avx2(const Group<E>& group, const std::int64_t* actions,
                                                 std::array<StepOf<E>, group_size>& steps) {
  return E::step_group(group, actions, steps);
}

template <StepsInGroups E>
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] bool step_group_avx512(const Group<E>& group,
                                                                        const std::int64_t* actions,
                                                                        std::array<StepOf<E>, group_size>& steps) {
  return E::step_group(group, actions, steps);
}
#endif

/// Returns the stepper for this processor; nullptr where environments are stepped one by one.
template <StepsInGroups E>
[[nodiscard]] GroupStepper<E> group_stepper() {
#if PENSTOCK_HAS_SIMD
  if (runs_avx512()) return step_group_avx512<E>;
  if (runs_avx2()) return step_group_avx2<E>;
#endif
  return nullptr;
}

}  // namespace penstock
