/// Recycled memory for the results of steps: one aligned slab per step, handed to NumPy without a copy.
///
/// A caller that drops each batch before the next keeps getting the same arrays; one that keeps batches gets new ones
/// each time, and nothing is ever overwritten. All calls hold the interpreter lock, which is what guards the rings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "bindings.hpp"

namespace penstock {

/// One array in every slab.
struct SlabPart {
  py::dtype dtype;
  Shape shape;
};

/// The memory: a slab comes back when the last of its arrays is dropped.
class SlabMemory : public std::enable_shared_from_this<SlabMemory> {
 public:
  static constexpr std::size_t alignment = 64;

  explicit SlabMemory(std::size_t slab_bytes) : slab_bytes_(slab_bytes) {}
  ~SlabMemory() {
    for (std::byte* memory : free_) release(memory);
  }
  SlabMemory(const SlabMemory&) = delete;
  SlabMemory& operator=(const SlabMemory&) = delete;

  /// A slab, and what must be kept for as long as it is used.
  std::pair<std::byte*, py::capsule> take() {
    std::byte* memory = nullptr;
    if (free_.empty()) {
      memory = static_cast<std::byte*>(::operator new(slab_bytes_, std::align_val_t{alignment}));
    } else {
      memory = free_.back();
      free_.pop_back();
    }
    auto loan = std::make_unique<Loan>(shared_from_this(), memory);
    py::capsule owner(loan.get(), [](void* pointer) { delete static_cast<Loan*>(pointer); });
    static_cast<void>(loan.release());
    return {memory, std::move(owner)};
  }

 private:
  static constexpr std::size_t kept = 8;  ///< more than this many idle slabs go back to the system

  struct Loan {
    Loan(std::shared_ptr<SlabMemory> from, std::byte* lent) : source(std::move(from)), memory(lent) {}
    ~Loan() {
      if (source->free_.size() < kept) source->free_.push_back(memory);
      else release(memory);
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    std::shared_ptr<SlabMemory> source;
    std::byte* memory;
  };

  static void release(std::byte* memory) { ::operator delete(memory, std::align_val_t{alignment}); }

  const std::size_t slab_bytes_;
  std::vector<std::byte*> free_;
};

/// The arrays of one slab.
class Slab {
 public:
  Slab() = default;
  Slab(const std::vector<SlabPart>& parts, std::byte* memory, const py::capsule& owner) {
    for (const SlabPart& part : parts) {
      arrays_.emplace_back(part.dtype, part.shape, memory, owner);
      data_.push_back(memory);
      memory += bytes(part);
    }
  }

  /// Returns the part's size, rounded up so that the next one is aligned.
  static std::size_t bytes(const SlabPart& part) {
    auto size = static_cast<std::size_t>(part.dtype.itemsize());
    for (const py::ssize_t extent : part.shape) size *= static_cast<std::size_t>(extent);
    return (size + SlabMemory::alignment - 1) / SlabMemory::alignment * SlabMemory::alignment;
  }

  [[nodiscard]] std::byte* data(std::size_t part) const { return data_[part]; }
  [[nodiscard]] const py::array& array(std::size_t part) const { return arrays_[part]; }

  /// Returns whether there is no other reference to the arrays and they are unchanged: only then may they be handed out
  /// a second time. A view, a tensor or a memoryview of an array refers to it.
  [[nodiscard]] bool is_idle(const std::vector<SlabPart>& parts) const {
#ifdef Py_GIL_DISABLED
    static_cast<void>(parts);
    return false;
#else
    if (arrays_.empty()) return false;
    for (std::size_t part = 0; part < arrays_.size(); ++part) {
      PyObject* object = arrays_[part].ptr();
      if (Py_REFCNT(object) != 1) return false;
      const auto& array = *py::detail::array_proxy(object);
      const auto& [dtype, shape] = parts[part];
      constexpr int made = Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_ | Api::NPY_ARRAY_WRITEABLE_;
      if (array.data != reinterpret_cast<const char*>(data_[part]) || array.descr != dtype.ptr() ||
          (array.flags & made) != made || array.nd != static_cast<int>(shape.size()) ||
          !std::equal(shape.begin(), shape.end(), array.dimensions))
        return false;
      const auto* bytes = reinterpret_cast<const char*>(object);
      const Py_ssize_t weak = Py_TYPE(object)->tp_weaklistoffset;
      if (weak > 0 && *reinterpret_cast<PyObject* const*>(bytes + weak) != nullptr) return false;
    }
    return true;
#endif
  }

 private:
  using Api = py::detail::npy_api;
  std::vector<py::array> arrays_;
  std::vector<std::byte*> data_;
};

/// Hands slabs out. A few are remembered with their arrays, so that those that came back need not be made again.
class SlabRing {
 public:
  /// `remembered` slabs at most: those that a caller has at a time, and a few.
  explicit SlabRing(std::vector<SlabPart> parts, std::size_t remembered = 4)
      : parts_(std::move(parts)), slabs_(remembered) {
    std::size_t total = 0;
    for (const SlabPart& part : parts_) total += Slab::bytes(part);
    memory_ = std::make_shared<SlabMemory>(std::max(total, SlabMemory::alignment));
  }

  /// Returns arrays without other references. The result is valid until the next call.
  const Slab& take() {
    const std::size_t first = next_;
    for (std::size_t turn = 0; turn < std::min(slabs_.size(), most_looks); ++turn) {
      Slab& slab = slabs_[next_];
      next_ = (next_ + 1) % slabs_.size();
      if (slab.is_idle(parts_)) return slab;
    }
    Slab& oldest = slabs_[first];
    next_ = (first + 1) % slabs_.size();
    oldest = Slab();  // before the next is taken: its memory may come back with it
    const auto [memory, owner] = memory_->take();
    oldest = Slab(parts_, memory, owner);
    return oldest;
  }

 private:
  /// The slab that was handed out first comes back first, mostly: to look at all of many takes longer than a new one.
  static constexpr std::size_t most_looks = 8;

  const std::vector<SlabPart> parts_;
  std::shared_ptr<SlabMemory> memory_;
  std::vector<Slab> slabs_;
  std::size_t next_ = 0;
};

}  // namespace penstock
