/// A team of threads that works on one job at a time, the calling thread included.
///
/// A job is given to every member with its index; `run` returns when all are done. No allocation and no lock per job:
/// one counter starts the job, one padded counter per member ends it. Waiting spins briefly, then sleeps in the kernel.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
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

class Workers {
 public:
  /// `size` >= 1 members: the calling thread and size - 1 others, which live until destruction.
  explicit Workers(int size) : size_(size), done_(static_cast<std::size_t>(size)) {
    if (size < 1) throw std::invalid_argument("a team needs at least one thread, got " + std::to_string(size));
    try {
      for (int member = 1; member < size; ++member) threads_->emplace_back([this, member] { serve(member); });
    } catch (...) {  // the operating system refused a thread: let the others go, or their destructors end the process
      stop();
      throw;
    }
  }
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] int size() const noexcept { return size_; }

  /// Calls job(member) for every member 0 .. size - 1 at the same time. The job must not throw. Blocks; not re-entrant.
  template <class Job>
  void run(Job&& job) {
    static_assert(std::is_nothrow_invocable_v<Job&, int>, "catch inside: nobody waits for a worker's exception");
    if (size_ > 1) {
      if (fork_generation().load(std::memory_order_relaxed) != generation_)
        throw std::runtime_error("a pool's threads do not survive a fork: make it in the process that uses it");
      context_ = std::addressof(job);
      call_ = [](const void* context, int member) {
        (*static_cast<std::remove_reference_t<Job>*>(const_cast<void*>(context)))(member);
      };
      const std::uint32_t ticket = start_.fetch_add(1, std::memory_order_release) + 1;
      start_.notify_all();
      job(0);
      for (int member = 1; member < size_; ++member) await(done_[static_cast<std::size_t>(member)].ticket, ticket);
    } else {
      job(0);
    }
  }

 private:
  struct alignas(64) Done {
    std::atomic<std::uint32_t> ticket{0};
  };

  /// Until `counter` has the value `wanted`. About 20 us of spinning covers the gap between two steps of a small
  /// policy; longer would steal a core from whoever else runs on this machine.
  static void await(const std::atomic<std::uint32_t>& counter, std::uint32_t wanted) noexcept {
    for (int spin = 0; spin < 400; ++spin) {
      if (counter.load(std::memory_order_acquire) == wanted) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    for (std::uint32_t seen; (seen = counter.load(std::memory_order_acquire)) != wanted;)
      counter.wait(seen, std::memory_order_acquire);
  }

  void serve(int member) noexcept {
    for (std::uint32_t ticket = 1;; ++ticket) {
      await(start_, ticket);
      if (stopping_) return;
      call_(context_, member);
      auto& done = done_[static_cast<std::size_t>(member)].ticket;
      done.store(ticket, std::memory_order_release);
      done.notify_one();
    }
  }

  void stop() noexcept {
    if (fork_generation().load(std::memory_order_relaxed) != generation_) {
      // In a forked child the threads are not there: joining would wait for ever, destroying them ends the process.
      static_cast<void>(threads_.release());
      return;
    }
    stopping_ = true;
    start_.fetch_add(1, std::memory_order_release);
    start_.notify_all();
    for (auto& thread : *threads_) thread.join();
  }

  const int size_;
  const std::uint32_t generation_ = fork_generation().load(std::memory_order_relaxed);
  const void* context_ = nullptr;
  void (*call_)(const void*, int) = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<std::uint32_t> start_{0};
  std::vector<Done> done_;
  std::unique_ptr<std::vector<std::thread>> threads_ = std::make_unique<std::vector<std::thread>>();
};

}  // namespace penstock
