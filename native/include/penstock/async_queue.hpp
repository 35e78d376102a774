/// Environments that were sent: one thread puts them in, many take chunks out, without a lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "penstock/threads.hpp"

namespace penstock {

class AsyncQueue {
 public:
  static constexpr std::size_t most = 64;  ///< a chunk

  /// Room for every environment once, which is what can be in it.
  explicit AsyncQueue(std::size_t capacity) : ring_(capacity) {}

  /// The one who sends. Wakes sleeping threads only if that is worth it; others notice by themselves.
  void push(std::span<const std::int32_t> environments, bool worth_waking) noexcept {
    std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    for (const std::int32_t env : environments)
      ring_[tail++ % ring_.size()].store(env, std::memory_order_relaxed);
    tail_.store(tail);
    if (worth_waking && sleepers_.load() > 0) ring();
  }

  /// Up to `wanted` of them; how many.
  std::size_t take(std::array<std::int32_t, most>& chunk, std::size_t wanted) noexcept {
    for (std::uint64_t head = head_.load(std::memory_order_acquire);;) {
      const std::uint64_t tail = tail_.load(std::memory_order_acquire);
      if (head >= tail) return 0;
      const std::size_t count = std::min<std::uint64_t>(wanted, tail - head);
      // Read first: once they are taken their places may be written again. If head has moved, what was read is void.
      for (std::size_t i = 0; i < count; ++i)
        chunk[i] = ring_[(head + i) % ring_.size()].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, head + count, std::memory_order_acq_rel, std::memory_order_acquire))
        return count;
    }
  }

  /// After `count` that were taken are done with.
  void settle(std::size_t count) noexcept { settled_.fetch_add(count, std::memory_order_release); }

  /// Drops what nobody has taken.
  void clear() noexcept {
    std::array<std::int32_t, most> dropped;
    while (const std::size_t count = take(dropped, most)) settle(count);
  }
  /// Whether all that was taken is done with.
  [[nodiscard]] bool is_settled() const noexcept {
    return settled_.load(std::memory_order_acquire) == head_.load(std::memory_order_acquire);
  }

  /// Until there may be something to take, or stop() was called.
  void wait(bool spins) noexcept {
    for (Patience patience(spins ? spin_nanoseconds : 0); !patience.is_over(); patience.spin())
      if (!is_empty() || is_stopping()) return;
    const std::uint32_t bell = bell_.load();
    sleepers_.fetch_add(1);
    if (is_empty() && !is_stopping()) sleep_while(bell_, bell);
    sleepers_.fetch_sub(1);
  }

  /// Until the next time that somebody is woken.
  void sleep() noexcept {
    const std::uint32_t bell = bell_.load();
    sleepers_.fetch_add(1);
    if (!is_stopping()) sleep_while(bell_, bell);
    sleepers_.fetch_sub(1);
  }

  [[nodiscard]] bool is_stopping() const noexcept { return stopping_.load(std::memory_order_acquire); }
  void stop() noexcept {
    stopping_.store(true);
    ring();
  }

 private:
  [[nodiscard]] bool is_empty() const noexcept { return head_.load() >= tail_.load(); }
  void ring() noexcept {
    bell_.fetch_add(1);
    wake(bell_, std::numeric_limits<int>::max());
  }

  std::vector<std::atomic<std::int32_t>> ring_;
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  alignas(64) std::atomic<std::uint64_t> settled_{0};
  alignas(64) std::atomic<std::uint32_t> bell_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace penstock
