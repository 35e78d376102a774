/// What threads of a pool need from the system: forks noticed, CPUs named, and a way to wait for a little while.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock {

/// How often this process was forked off. Threads do not survive a fork, so a team remembers where it was made.
inline const std::atomic<std::uint32_t>& fork_generation() {
  static std::atomic<std::uint32_t> generation{0};
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    return true;
  }();
  static_cast<void>(registered);
  return generation;
}

/// The CPUs that this process may use: a container's share, not the machine.
inline std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

/// Keeps the thread on one of the usable CPUs, in turn: member 0 is the caller, who is never pinned.
inline void pin(std::thread& thread, int member) {
  const std::vector<int> cpus = usable_cpus();
  if (cpus.empty()) throw std::runtime_error("thread_affinity: the system does not say which CPUs may be used");
  const int cpu = cpus[static_cast<std::size_t>(member) % cpus.size()];
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) != 0)
    throw std::runtime_error("thread_affinity: the system refuses to keep a thread on CPU " + std::to_string(cpu));
}

/// Sleeps until a wake() of this word that comes after it has changed from `seen`; returns early now and then. Unlike
/// std::atomic's wait it does not give its turn away first, after which a busy system lets the thread wait for long.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen) noexcept {
  static_assert(sizeof word == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
inline void wake(std::atomic<std::uint32_t>& word, int threads) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

inline std::int64_t nanoseconds_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline constexpr std::int64_t spin_nanoseconds = 50'000;

/// Waiting in a loop: spins at first, then lets others run, then naps.
class Patience {
 public:
  explicit Patience(std::int64_t nanoseconds) noexcept : budget_(nanoseconds) {}

  [[nodiscard]] bool is_over() const noexcept { return budget_ <= 0; }
  void spin() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
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
