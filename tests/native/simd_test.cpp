// Compares what groups compute with the C library. Run by test_simd.py with a number of angles, and of numbers of each kind
// of noise; prints what differs.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "penstock/simd/group.hpp"
#include "penstock/simd/group_noise.hpp"
#include "penstock/simd/powers.hpp"
#include "penstock/simd/sine_cosine.hpp"

namespace {

using penstock::GroupValues;

struct Results {
  GroupValues sine, cosine, small_sine, small_cosine, only_cosine, square;
};

[[gnu::always_inline]] inline void compute(const GroupValues& values, Results& out) {
  penstock::sines_and_cosines(values, out.sine, out.cosine);
  penstock::small_sines_and_cosines(values, out.small_sine, out.small_cosine);
  penstock::cosines(values, out.only_cosine);
  penstock::squares_of(values, out.square);
}

#if PENSTOCK_HAS_SIMD
[[gnu::target("avx2,fma"), gnu::noinline]] void by_avx2(const GroupValues& values, Results& out) { compute(values, out); }
[[gnu::target("avx512f,avx512dq,avx512vl,fma"), gnu::noinline]] void by_avx512(const GroupValues& values, Results& out) {
  compute(values, out);
}
#endif

int failures = 0;

void check(const char* what, double value, double found, double expected) {
  if (std::bit_cast<std::uint64_t>(found) == std::bit_cast<std::uint64_t>(expected) || ++failures > 20) return;
  std::printf("%s of %a is %a, expected %a\n", what, value, found, expected);
}

void compare(const GroupValues& values, const Results& out) {
  for (std::size_t i = 0; i < penstock::group_size; ++i) {
    const double value = values[i], sine = std::sin(value), cosine = std::cos(value);
    check("sine", value, out.sine[i], sine);
    check("cosine", value, out.cosine[i], cosine);
    check("small sine", value, out.small_sine[i], sine);
    check("small cosine", value, out.small_cosine[i], cosine);
    check("cosine alone", value, out.only_cosine[i], cosine);
    check("square", value, out.square[i], penstock::library_power(value, 2.0));
  }
}

// Noise of some counters by each instruction set and one by one.
#if PENSTOCK_HAS_SIMD
template <penstock::Noise kind>
void compare_noise(const char* what, long count) {
  for (long done = 0, round = 0; done < count; ++round) {
    const std::size_t envs = round % 2 ? 7 : 200, width = std::size_t(round % 6) + 1, steps = 16;
    std::vector<std::uint32_t> ids(envs);
    for (std::size_t i = 0; i < envs; ++i) ids[i] = std::uint32_t(i * 7919 + std::size_t(round));
    const penstock::Philox stream(std::uint64_t(round) * 12345, 1);
    std::vector<float> expected(envs * width * steps), found(expected.size());
    penstock::fill<kind>(stream, ids, 5, steps, width, expected);
    done += long(expected.size());
    const auto check_all = [&](penstock::NoiseFiller fill) {
      fill(stream, ids, 5, steps, width, found);
      for (std::size_t i = 0; i < found.size(); ++i) check(what, double(i), double(found[i]), double(expected[i]));
    };
    if (penstock::runs_avx2()) check_all(penstock::fill_avx2<kind>);
    if (penstock::runs_avx512()) check_all(penstock::fill_avx512<kind>);
  }
}
#endif

}  // namespace

int main(int, char** arguments) {
  const long count = std::atol(arguments[1]);
  for (int bits = 0; bits < 52; ++bits)
    for (const std::int64_t choice : {(std::int64_t{1} << bits) - 1, std::int64_t{1} << bits, (std::int64_t{2} << bits) - 1})
      check("choice_value", double(choice), penstock::choice_value(choice), static_cast<double>(choice));
#if PENSTOCK_HAS_SIMD
  std::mt19937_64 generator(11);
  const double ranges[] = {1e-7, 0.01, 0.13, 0.25, 0.9, 2.5, 3.2, 10.0, 70.0, 1e6};
  GroupValues values;
  Results out;
  for (long done = 0; done < count; done += long(penstock::group_size)) {
    const double range = ranges[std::size_t(done / long(penstock::group_size)) % std::size(ranges)];
    std::uniform_real_distribution<double> draw(-range, range);
    for (double& value : values) value = draw(generator);
    if (penstock::runs_avx2()) by_avx2(values, out), compare(values, out);
    if (penstock::runs_avx512()) by_avx512(values, out), compare(values, out);
  }
  compare_noise<penstock::Noise::uniform>("uniform noise", count);
  compare_noise<penstock::Noise::gumbel>("Gumbel noise", count);
  compare_noise<penstock::Noise::normal>("normal noise", count);
#endif
  return failures != 0;
}
