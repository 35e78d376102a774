/// Declarations that the files of the binding share: entry points and array checks.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "../interpreter_lock.hpp"
#include "penstock/engine/any_pool.hpp"

namespace penstock {

namespace py = pybind11;
using Shape = std::vector<py::ssize_t>;

struct Registered {
  CatalogEntry entry;
  std::string library;    ///< path of the shared library that it came with; empty if it is built in
  std::string resources;  ///< folder that its pools are given
};

/// Returns the environments of penstock/envs/built_in.hpp.
std::vector<CatalogEntry> built_in_entries();

/// The environment of that id, or ValueError that lists those that exist.
const Registered& registered(const std::string& id);

void bind_catalog(py::module_& module);
void bind_pool(py::module_& module);
void bind_random(py::module_& module);

template <class T>
py::array_t<T> to_array(const std::vector<T>& values, const std::vector<std::int64_t>& shape) {
  py::array_t<T> array(Shape(shape.begin(), shape.end()));
  std::copy(values.begin(), values.end(), array.mutable_data());
  return array;
}

inline py::dtype dtype_of(ValueType type) {
  switch (type) {
    case ValueType::float32: return py::dtype::of<float>();
    case ValueType::float64: return py::dtype::of<double>();
    case ValueType::uint8: return py::dtype::of<std::uint8_t>();
  }
  throw std::logic_error("unknown value type");
}

/// "(3, 4)"
inline std::string to_text(const py::ssize_t* sizes, std::size_t count) {
  std::string text = "(";
  for (std::size_t i = 0; i < count; ++i) text.append(i > 0 ? ", " : "").append(std::to_string(sizes[i]));
  return text + (count == 1 ? ",)" : ")");
}

/// The data of an array that has exactly this type and shape, C-contiguous and aligned, or ValueError saying what was
/// found. Nothing is ever converted: a copy would be written to, or read from, in vain.
template <class T, bool writable>
auto* checked_data(const py::handle& object, const Shape& shape, const char* name) {
  using Pointer = std::conditional_t<writable, T, const T>*;
  constexpr int wanted = int{py::array::c_style} | int{py::detail::npy_api::NPY_ARRAY_ALIGNED_} |
                         (writable ? int{py::detail::npy_api::NPY_ARRAY_WRITEABLE_} : 0);
  if (py::isinstance<py::array>(object)) {
    const auto array = py::reinterpret_borrow<py::array>(object);
    if (array.ndim() == static_cast<py::ssize_t>(shape.size()) &&
        std::equal(shape.begin(), shape.end(), array.shape()) && (array.flags() & wanted) == wanted &&
        py::array_t<T>::check_(array))
      return static_cast<Pointer>(const_cast<void*>(array.data()));
    std::string found = py::str(array.dtype()).cast<std::string>() + " " +
                        to_text(array.shape(), static_cast<std::size_t>(array.ndim()));
    if (!(array.flags() & py::array::c_style)) found += ", not C-contiguous";
    if (writable && !array.writeable()) found += ", read-only";
    throw py::value_error(std::string(name) + ": expected a " + (writable ? "writable " : "") + "C-contiguous " +
                          py::str(py::dtype::of<T>()).template cast<std::string>() + " array of shape " +
                          to_text(shape.data(), shape.size()) + ", got " + found);
  }
  throw py::value_error(std::string(name) + ": expected a NumPy array of shape " + to_text(shape.data(), shape.size()) +
                        ", got " + py::str(py::type::of(object)).template cast<std::string>());
}

template <class T>
const T* readable_data(const py::handle& object, const Shape& shape, const char* name) {
  return checked_data<T, false>(object, shape, name);
}
template <class T>
T* writable_data(const py::handle& object, const Shape& shape, const char* name) {
  return checked_data<T, true>(object, shape, name);
}

}  // namespace penstock
