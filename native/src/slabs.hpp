/// Recycled memory for what a step returns: one aligned slab a step, handed to NumPy without a copy.
///
/// A slab comes back when the last of its arrays is dropped. Who drops each batch before the next uses one slab for
/// ever; who keeps batches gets a new one each time, and nothing is ever overwritten. All calls hold the interpreter
/// lock, which is what guards the ring.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "bindings.hpp"

namespace penstock {

class SlabRing;

/// A slab on loan, and the arrays that keep it.
class Slab {
 public:
  [[nodiscard]] std::byte* data(std::size_t part) const;
  [[nodiscard]] py::array array(std::size_t part, const py::dtype& dtype, const Shape& shape) const {
    return py::array(dtype, shape, data(part), owner_);
  }

 private:
  friend class SlabRing;
  Slab(const SlabRing& ring, std::byte* memory, py::capsule owner)
      : ring_(ring), memory_(memory), owner_(std::move(owner)) {}

  const SlabRing& ring_;
  std::byte* memory_;
  py::capsule owner_;
};

class SlabRing {
 public:
  /// Slabs with parts of these sizes, each at a multiple of 64 bytes.
  explicit SlabRing(const std::vector<std::size_t>& part_bytes) {
    for (const std::size_t bytes : part_bytes) {
      offsets_.push_back(slab_bytes_);
      slab_bytes_ += (bytes + alignment - 1) / alignment * alignment;
    }
  }
  ~SlabRing() {
    for (std::byte* memory : free_) release(memory);
  }
  SlabRing(const SlabRing&) = delete;
  SlabRing& operator=(const SlabRing&) = delete;

  static Slab take(const std::shared_ptr<SlabRing>& ring) {
    std::byte* memory = nullptr;
    if (ring->free_.empty()) {
      memory = static_cast<std::byte*>(::operator new(ring->slab_bytes_, std::align_val_t{alignment}));
    } else {
      memory = ring->free_.back();
      ring->free_.pop_back();
    }
    auto loan = std::make_unique<Loan>(ring, memory);
    py::capsule owner(loan.get(), [](void* pointer) { delete static_cast<Loan*>(pointer); });
    static_cast<void>(loan.release());
    return Slab(*ring, memory, std::move(owner));
  }

 private:
  friend class Slab;
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t kept = 8;  ///< more than this many idle slabs go back to the system

  struct Loan {
    Loan(std::shared_ptr<SlabRing> from, std::byte* lent) : ring(std::move(from)), memory(lent) {}
    ~Loan() {
      if (ring->free_.size() < kept) ring->free_.push_back(memory);
      else release(memory);
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    std::shared_ptr<SlabRing> ring;
    std::byte* memory;
  };

  static void release(std::byte* memory) { ::operator delete(memory, std::align_val_t{alignment}); }

  std::vector<std::size_t> offsets_;
  std::size_t slab_bytes_ = 0;
  std::vector<std::byte*> free_;
};

inline std::byte* Slab::data(std::size_t part) const { return memory_ + ring_.offsets_[part]; }

}  // namespace penstock
