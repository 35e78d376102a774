/// Converts a caller's actions to what the engine takes: int64 or float32, C-contiguous.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.hpp"

namespace penstock {

class ActionReader {
 public:
  /// `shape` is that of one action.
  ActionReader(bool is_discrete, const std::vector<std::int64_t>& shape) : is_discrete_(is_discrete) {
    shape_.assign(1, 0);
    shape_.insert(shape_.end(), shape.begin(), shape.end());
  }

  /// The data of `rows` actions: the caller's own if it is already as wanted, otherwise converted. Valid until the next
  /// call, for as long as the caller keeps the array. Throws ValueError for another kind of number or shape.
  const void* read(const py::handle& actions, py::ssize_t rows) {
    const auto& api = py::detail::npy_api::get();
    shape_.front() = rows;
    if (Py_TYPE(actions.ptr()) == api.PyArray_Type_)
      if (const void* data = direct(*py::detail::array_proxy(actions.ptr()))) return data;
    return converted(actions, api);
  }

  /// Returns the size of what was read last.
  [[nodiscard]] std::size_t bytes() const { return count() * (is_discrete_ ? sizeof(std::int64_t) : sizeof(float)); }

 private:
  using Api = py::detail::npy_api;

  /// nullptr where NumPy must do it.
  const void* direct(const py::detail::PyArray_Proxy& array) {
    constexpr int wanted = Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_;
    if (array.nd != static_cast<int>(shape_.size()) || (array.flags & wanted) != wanted ||
        !std::equal(shape_.begin(), shape_.end(), array.dimensions))
      return nullptr;
    const auto& type = *py::detail::array_descriptor1_proxy(array.descr);
    if (is_discrete_) {
      switch (type.type_num) {
        case Api::NPY_INT64_: return is_native(type) ? array.data : nullptr;
        case Api::NPY_INT32_: return is_native(type) ? widened<std::int32_t>(array.data) : nullptr;
        case Api::NPY_UINT8_: return widened<std::uint8_t>(array.data);
        default: return nullptr;
      }
    }
    switch (type.type_num) {
      case Api::NPY_FLOAT_: return is_native(type) ? array.data : nullptr;
      case Api::NPY_DOUBLE_: return is_native(type) ? rounded(array.data) : nullptr;
      default: return nullptr;
    }
  }

  static bool is_native(const py::detail::PyArrayDescr1_Proxy& type) { return type.byteorder == '='; }

  [[nodiscard]] std::size_t count() const {
    std::size_t product = 1;
    for (const py::ssize_t size : shape_) product *= static_cast<std::size_t>(size);
    return product;
  }

  template <class T>
  const void* widened(const char* data) {
    integers_.resize(count());
    std::copy_n(reinterpret_cast<const T*>(data), integers_.size(), integers_.begin());
    return integers_.data();
  }
  const void* rounded(const char* data) {
    floats_.resize(count());
    const auto* values = reinterpret_cast<const double*>(data);
    std::transform(values, values + floats_.size(), floats_.begin(), [](double v) { return static_cast<float>(v); });
    return floats_.data();
  }

  const void* converted(const py::handle& actions, const Api& api) {
    const auto found = py::reinterpret_steal<py::array>(api.PyArray_FromAny_(actions.ptr(), nullptr, 0, 0, 0, nullptr));
    if (!found) throw py::error_already_set();
    const char kind = found.dtype().kind();
    const bool right_kind = kind == 'i' || kind == 'u' || (kind == 'f' && !is_discrete_);
    if (!right_kind || found.ndim() != static_cast<py::ssize_t>(shape_.size()) ||
        !std::equal(shape_.begin(), shape_.end(), found.shape()))
      throw py::value_error(std::string("expected ") + (is_discrete_ ? "integers" : "floats") + " of shape " +
                            to_text(shape_.data(), shape_.size()) + " as actions, got " +
                            py::str(found.dtype()).cast<std::string>() + " of " +
                            to_text(found.shape(), static_cast<std::size_t>(found.ndim())));
    constexpr int wanted = Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_ | Api::NPY_ARRAY_FORCECAST_;
    py::dtype dtype = is_discrete_ ? py::dtype::of<std::int64_t>() : py::dtype::of<float>();
    kept_ = py::reinterpret_steal<py::array>(
        api.PyArray_FromAny_(found.ptr(), dtype.release().ptr(), 0, 0, wanted, nullptr));
    if (!kept_) throw py::error_already_set();
    return py::detail::array_proxy(kept_.ptr())->data;
  }

  const bool is_discrete_;
  Shape shape_;
  std::vector<std::int64_t> integers_;
  std::vector<float> floats_;
  py::object kept_;
};

}  // namespace penstock
