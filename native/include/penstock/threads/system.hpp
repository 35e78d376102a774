/// The operating system's part of threading: fork detection, usable CPUs, pinning, and sleeping on an atomic word.
///
/// Linux uses futexes and CPU affinity; other systems take the portable branch, which
/// PENSTOCK_PORTABLE_THREADS selects on Linux too. The portable branch has not been run on another system.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__) && !defined(PENSTOCK_PORTABLE_THREADS)
#define PENSTOCK_LINUX_THREADS 1
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define PENSTOCK_LINUX_THREADS 0
#endif

namespace penstock {

/// Counts the forks between this process and the first. Threads do not survive a fork, so a team remembers the count
/// that it was made under.
inline const std::atomic<std::uint32_t>& fork_generation() {
  static std::atomic<std::uint32_t> generation{0};
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    return true;
  }();
  static_cast<void>(registered);
  return generation;
}

/// Adds a thread that calls `work()` to those of a pool, of which `size` are wanted with the calling one.
template <class Work>
void start_thread(std::vector<std::thread>& threads, int size, Work&& work) {
  try {
    threads.emplace_back(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw std::runtime_error("num_threads is " + std::to_string(size) + ", but the system starts no thread after " +
                             std::to_string(threads.size() + 1) + " (" + error.what() +
                             "): make the pool with fewer, or raise the limits of the system");
  }
}

#if PENSTOCK_LINUX_THREADS

/// Returns the CPUs that this process may use: a container's share, not the whole machine.
inline std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

/// Pins the thread to one of the usable CPUs, in turn. Member 0 is the calling thread, which is never pinned.
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

/// Sleeps until a wake() of this word that comes after it has changed from `seen`; may return early. Unlike
/// std::atomic's wait it does not yield first, after which a busy system may not schedule the thread for long.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen) noexcept {
  static_assert(sizeof word == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
inline void wake_one(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}
inline void wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

#else

/// Returns all CPUs, numbered from 0.
inline std::vector<int> usable_cpus() {
  std::vector<int> cpus(std::thread::hardware_concurrency());
  for (std::size_t cpu = 0; cpu < cpus.size(); ++cpu) cpus[cpu] = static_cast<int>(cpu);
  return cpus;
}

inline void pin(std::thread&, int) {
  throw std::runtime_error("thread_affinity: threads cannot be pinned on this system, only on Linux; leave it out");
}

/// Sleeps while the word is `seen`, until it is woken; may return early.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen) noexcept { word.wait(seen); }
inline void wake_one(std::atomic<std::uint32_t>& word) noexcept { word.notify_one(); }
inline void wake_all(std::atomic<std::uint32_t>& word) noexcept { word.notify_all(); }

#endif

}  // namespace penstock
