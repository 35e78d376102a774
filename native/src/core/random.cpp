/// Binds the noise, and the generators themselves so that they can be compared with NumPy's.
#include <pybind11/stl.h>

#include <limits>

#include "bindings.hpp"
#include "penstock/random/counter_noise.hpp"
#include "penstock/random/numpy_random.hpp"
#include "penstock/simd/group_noise.hpp"

namespace penstock {
namespace {

constexpr std::uint64_t max_word = std::numeric_limits<std::uint32_t>::max();

/// An int of Python or NumPy in [0, limit], or ValueError.
std::uint64_t checked_word(const py::handle& object, const char* name, std::uint64_t limit) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!index) throw py::error_already_set();
  const std::uint64_t value = PyLong_AsUnsignedLongLong(index.ptr());
  const bool overflow = PyErr_Occurred() != nullptr;
  if (overflow) PyErr_Clear();
  if (overflow || value > limit)
    throw py::value_error(std::string(name) + " is " + py::str(index).cast<std::string>() + ", expected 0 to " +
                          std::to_string(limit));
  return value;
}

template <Noise kind>
void fill_released(const Philox& stream, const std::vector<std::uint32_t>& environments, std::uint32_t round,
                   std::size_t steps, std::size_t width, std::span<float> out) {
  static const NoiseFiller filler = noise_filler<kind>();
  const Unlocked released;
  filler(stream, environments, round, steps, width, out);
}

void fill_noise(const std::string& kind, const py::object& seed, const py::object& purpose, const py::array& env_ids,
                const py::object& round, const py::array& out) {
  const Philox stream(checked_word(seed, "seed", std::numeric_limits<std::uint64_t>::max()),
                      static_cast<std::uint32_t>(checked_word(purpose, "purpose", max_word)));
  const auto round_word = static_cast<std::uint32_t>(checked_word(round, "round", max_word));
  if (env_ids.ndim() != 1 || out.ndim() < 2 || out.shape(1) != env_ids.shape(0))
    throw py::value_error("env_ids must be [B] and out [T, B, ...], got " +
                          to_text(env_ids.shape(), static_cast<std::size_t>(env_ids.ndim())) + " and " +
                          to_text(out.shape(), static_cast<std::size_t>(out.ndim())));
  const auto* ids = readable_data<std::int64_t>(env_ids, {env_ids.shape(0)}, "env_ids");
  float* values = writable_data<float>(out, Shape(out.shape(), out.shape() + out.ndim()), "out");
  std::vector<std::uint32_t> environments(static_cast<std::size_t>(env_ids.shape(0)));
  for (std::size_t b = 0; b < environments.size(); ++b) {
    if (ids[b] < 0 || static_cast<std::uint64_t>(ids[b]) > max_word)
      throw py::value_error("env_ids[" + std::to_string(b) + "] is " + std::to_string(ids[b]) + ", expected 0 to " +
                            std::to_string(max_word));
    environments[b] = static_cast<std::uint32_t>(ids[b]);
  }
  const auto steps = static_cast<std::size_t>(out.shape(0)), size = static_cast<std::size_t>(out.size());
  if (steps > max_word) throw py::value_error("out has more than 2**32 steps");
  if (size == 0) return;
  const std::size_t width = size / (steps * environments.size());
  const std::span<float> target(values, size);
  if (kind == "uniform") fill_released<Noise::uniform>(stream, environments, round_word, steps, width, target);
  else if (kind == "normal") fill_released<Noise::normal>(stream, environments, round_word, steps, width, target);
  else if (kind == "gumbel") fill_released<Noise::gumbel>(stream, environments, round_word, steps, width, target);
  else throw py::value_error("kind is '" + kind + "', expected 'uniform', 'normal' or 'gumbel'");
}

}  // namespace

void bind_random(py::module_& module) {
  module.def("fill_noise", &fill_noise, py::arg("kind"), py::arg("seed"), py::arg("purpose"), py::arg("env_ids"),
             py::arg("round"), py::arg("out"),
             "Fill out [T, B, ...] with noise that depends on (seed, purpose, env_id, round, t, k) alone.");
  module.def("philox", &Philox::rounds, py::arg("counter"), py::arg("key"), "Philox4x32-10 itself.");
  py::class_<Rng>(module, "Rng", "numpy.random.Generator(PCG64(SeedSequence(seed))), as environments use it.")
      .def(py::init([](const py::object& seed) {
             return Rng(checked_word(seed, "seed", std::numeric_limits<std::uint64_t>::max()));
           }),
           py::arg("seed"))
      .def("random", &Rng::random)
      .def("uniform", py::overload_cast<double, double>(&Rng::uniform), py::arg("low"), py::arg("high"))
      .def("integers",
           [](Rng& rng, std::int64_t low, std::int64_t high) {
             if (low >= high)
               throw py::value_error("low is " + std::to_string(low) + " and high " + std::to_string(high) +
                                     ", expected low < high");
             return rng.integers(low, high);
           },
           py::arg("low"), py::arg("high"))
      .def("standard_normal", py::overload_cast<>(&Rng::standard_normal))
      .def("normal", &Rng::normal, py::arg("mean"), py::arg("deviation"))
      .def("next", &Rng::next)
      .def("words", &Rng::words);
  module.def("seed_sequence", [](std::uint64_t seed) { return SeedSequence(seed).generate<8>(); }, py::arg("seed"),
             "SeedSequence(seed).generate_state(8, np.uint64)");
}

}  // namespace penstock
