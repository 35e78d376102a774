/// A lock-free queue of environments to step: one producer, many consumers that take chunks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/threads/spin_wait.hpp"
#include "penstock/threads/system.hpp"

namespace penstock {

class WorkQueue {
 public:
  static constexpr std::size_t max_chunk = 256;

  /// Makes room for every environment once, the most that can be queued.
  explicit WorkQueue(std::size_t capacity) : ring_(capacity) {}

  /// Enqueues environments. Single producer; never blocks. Wakes sleeping threads only if that is worth its cost.
  void push(std::span<const std::int32_t> environments, bool worth_waking) noexcept {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    std::size_t place = tail % ring_.size();
    for (const std::int32_t env : environments) ring_[advance(place)].store(env, std::memory_order_relaxed);
    tail_.store(tail + environments.size());
    if (worth_waking && sleepers_.load() > 0) ring();
  }

  /// Dequeues up to `wanted` environments; returns their number.
  std::size_t take(std::array<std::int32_t, max_chunk>& chunk, std::size_t wanted) noexcept {
    for (std::uint64_t head = head_.load(std::memory_order_acquire);;) {
      const std::uint64_t tail = tail_.load(std::memory_order_acquire);
      if (head >= tail) return 0;
      const std::size_t count = std::min<std::uint64_t>(wanted, tail - head);
      // Read first: once they are taken their places may be written again. If head has moved, what was read is void.
      std::size_t place = head % ring_.size();
      for (std::size_t i = 0; i < count; ++i) chunk[i] = ring_[advance(place)].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, head + count, std::memory_order_acq_rel, std::memory_order_acquire))
        return count;
    }
  }

  /// Counts `count` dequeued environments as finished.
  void mark_done(std::size_t count) noexcept { done_.fetch_add(count, std::memory_order_release); }

  /// Drops everything that is still queued.
  void clear() noexcept {
    std::array<std::int32_t, max_chunk> dropped;
    while (const std::size_t count = take(dropped, max_chunk)) mark_done(count);
  }
  /// Returns whether every dequeued environment is finished.
  [[nodiscard]] bool is_drained() const noexcept {
    return done_.load(std::memory_order_acquire) == head_.load(std::memory_order_acquire);
  }

  /// Waits until there may be something to dequeue, or stop() was called.
  void wait(bool spins) noexcept {
    for (SpinWait waiter(spins ? spin_nanoseconds : 0); !waiter.is_over(); waiter.spin())
      if (!is_empty() || is_stopping()) return;
    const std::uint32_t epoch = wake_epoch_.load();
    sleepers_.fetch_add(1);
    if (is_empty() && !is_stopping()) sleep_while(wake_epoch_, epoch);
    sleepers_.fetch_sub(1);
  }

  /// Sleeps until the next wake-up.
  void sleep() noexcept {
    const std::uint32_t epoch = wake_epoch_.load();
    sleepers_.fetch_add(1);
    if (!is_stopping()) sleep_while(wake_epoch_, epoch);
    sleepers_.fetch_sub(1);
  }

  [[nodiscard]] bool is_stopping() const noexcept { return stopping_.load(std::memory_order_acquire); }
  void stop() noexcept {
    stopping_.store(true);
    ring();
  }

 private:
  /// Returns a place, and moves on to the next: a division for each environment would cost more than its step.
  std::size_t advance(std::size_t& place) const noexcept {
    const std::size_t current = place++;
    if (place == ring_.size()) place = 0;
    return current;
  }
  [[nodiscard]] bool is_empty() const noexcept { return head_.load() >= tail_.load(); }
  void ring() noexcept {
    wake_epoch_.fetch_add(1);
    penstock::wake_all(wake_epoch_);
  }

  std::vector<std::atomic<std::int32_t>> ring_;
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  alignas(64) std::atomic<std::uint64_t> done_{0};
  alignas(64) std::atomic<std::uint32_t> wake_epoch_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace penstock
