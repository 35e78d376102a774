/// The clock of the thread team, and busy waiting with a time budget.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace penstock {

inline std::int64_t nanoseconds_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline constexpr std::int64_t spin_nanoseconds = 50'000;

/// Back-off for a waiting loop: spins for a budget of time, then yields, then naps for 50 us at a time.
class SpinWait {
 public:
  explicit SpinWait(std::int64_t nanoseconds) noexcept : budget_(nanoseconds) {}

  [[nodiscard]] bool is_over() const noexcept { return budget_ <= 0; }
  void spin() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
    if (++spins_ % 32 != 0) return;
    const std::int64_t now = nanoseconds_now();
    if (begin_ == 0) begin_ = now;
    else if (now - begin_ > budget_) budget_ = 0;
  }
  void wait() noexcept {
    if (!is_over()) spin();
    else if (++yields_ < 64) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  std::int64_t budget_;
  std::int64_t begin_ = 0;
  unsigned spins_ = 0, yields_ = 0;
};

}  // namespace penstock
