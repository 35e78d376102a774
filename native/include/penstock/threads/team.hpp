/// A team of threads that works through the blocks of one job at a time, the calling thread included.
///
/// A job is cut into blocks, always the same ones. Every member has a lane of them, takes those one by one, and then
/// helps in the lanes of others, so no member waits for a thread that the system has not woken yet: the caller does its
/// blocks meanwhile. How many members take part is decided by what a job was measured to cost, down to the caller
/// alone. No allocation and no lock per job. Waiting spins briefly, then sleeps in the kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "penstock/threads/job.hpp"
#include "penstock/threads/team_sizing.hpp"
#include "penstock/threads/spin_wait.hpp"
#include "penstock/threads/system.hpp"

namespace penstock {

class ThreadTeam {
 public:
  static constexpr std::size_t max_blocks = 0xffff;

  /// `size` >= 1 members: the calling thread and size - 1 others, which live until destruction. With `pinned`, each of
  /// the others stays on one CPU of those that this process may use.
  ThreadTeam(int size, std::size_t blocks, bool pinned = false)
      : size_(checked(size)), blocks_(blocks), lanes_(static_cast<std::size_t>(size)), sizer_(size) {
    if (blocks < 1 || blocks > max_blocks) throw std::invalid_argument("a job has 1 to 65535 blocks");
    try {
      for (int member = 1; member < size; ++member) {
        start_thread(*threads_, size, [this, member] { serve(static_cast<std::size_t>(member)); });
        if (pinned) pin(threads_->back(), member);
      }
    } catch (...) {  // the operating system refused a thread: let the others go, or their destructors end the process
      stop();
      throw;
    }
  }
  ~ThreadTeam() { stop(); }
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const TeamSizer& sizer() const noexcept { return sizer_; }

  /// Calls job(member, first, last) for blocks [first, last), each block once, the members concurrently. The job must
  /// not throw. Blocks; not re-entrant. `poll` is called in the calling thread every tenth of a second or so.
  template <class Job, class Poll>
  void run(Job&& job, Poll&& poll) {
    static_assert(std::is_nothrow_invocable_v<Job&, std::size_t, std::size_t, std::size_t>,
                  "catch inside: no caller receives a worker's exception");
    run_erased({std::addressof(job), call_job<std::remove_reference_t<Job>>},
               {std::addressof(poll), [](const void* context) {
                  (*static_cast<std::remove_reference_t<Poll>*>(const_cast<void*>(context)))();
                }});
  }

 private:
  void run_erased(const JobRef& job, const PollRef& poll) {
    if (size_ > 1 && fork_generation().load(std::memory_order_relaxed) != generation_)
      throw std::runtime_error("a pool's threads do not survive a fork: make it in the process that uses it");
    sizer_.begin();
    std::size_t done_here = blocks_;
    const std::size_t team = sizer_.team();
    if (team > 1) {
      done_here = share(job, poll, team);
    } else if (sizer_.is_brief()) {
      job(std::size_t{0}, std::size_t{0}, blocks_);
    } else {
      for (std::size_t block = 0; block < blocks_; ++block) {
        job(std::size_t{0}, block, block + 1);
        if (sizer_.poll_is_due()) poll();
      }
    }
    sizer_.end(done_here, blocks_);
  }

  /// `claim` packs the job's ticket, the next block to take and the lane's last one, so that a thread that comes late
  /// can never take a block of another job than the one that it was called for.
  struct alignas(128) Lane {
    std::atomic<std::uint64_t> claim{0};
    std::atomic<std::uint32_t> start{0};  ///< the ticket that the member is called for
    std::atomic<bool> sleeps{false};
    alignas(64) std::atomic<std::uint32_t> done{0};  ///< number of blocks that the member did, over all jobs
  };

  static int checked(int size) {
    if (size < 1) throw std::invalid_argument("a team needs at least one thread, got " + std::to_string(size));
    return size;
  }

  /// Takes a block of the lane for the job of this ticket; false where none is left.
  static bool take(Lane& lane, std::uint32_t ticket, std::size_t& block) noexcept {
    std::uint64_t seen = lane.claim.load(std::memory_order_acquire);
    do {
      if (seen >> 32 != ticket || (seen >> 16 & 0xffff) >= (seen & 0xffff)) return false;
    } while (!lane.claim.compare_exchange_weak(seen, seen + (1u << 16), std::memory_order_acq_rel,
                                               std::memory_order_acquire));
    block = seen >> 16 & 0xffff;
    return true;
  }

  std::size_t share(const JobRef& job, const PollRef& poll, std::size_t team) {
    job_ = job;
    const std::uint32_t ticket = ++ticket_;
    for (std::size_t member = 0; member < team; ++member) {
      const std::uint64_t first = blocks_ * member / team, last = blocks_ * (member + 1) / team;
      lanes_[member].claim.store(std::uint64_t{ticket} << 32 | first << 16 | last, std::memory_order_release);
    }
    for (std::size_t member = 1; member < team; ++member) {
      call(lanes_[member], ticket);
    }
    std::size_t done_here = 0;
    for (std::size_t member = 0; member < team; ++member) {
      for (std::size_t block = 0; take(lanes_[member], ticket, block); ++done_here) {
        job(std::size_t{0}, block, block + 1);
        if (!sizer_.is_brief() && sizer_.poll_is_due()) poll();
      }
    }
    sizer_.end_of_own_blocks();
    done_elsewhere_ += static_cast<std::uint32_t>(blocks_ - done_here);
    // The remaining blocks are in progress on other threads, one each. The wait is bounded by one block unless the
    // system has taken a CPU away, and a poll must not come too late: hence short naps rather than a wait without end.
    for (SpinWait waiter(sizer_.spins() ? spin_nanoseconds : 0); done_by_others() != done_elsewhere_;) {
      waiter.wait();
      if (!sizer_.is_brief() && sizer_.poll_is_due()) poll();
    }
    return done_here;
  }

  [[nodiscard]] std::uint32_t done_by_others() const noexcept {
    std::uint32_t total = 0;
    for (std::size_t member = 1; member < lanes_.size(); ++member)
      total += lanes_[member].done.load(std::memory_order_acquire);
    return total;
  }

  void serve(std::size_t member) noexcept {
    Lane& mine = lanes_[member];
    for (std::uint32_t seen = 0;;) {
      seen = await_call(mine, seen);
      if (stopping_.load(std::memory_order_acquire)) return;
      for (std::size_t other = 0; other < lanes_.size(); ++other) {
        Lane& lane = lanes_[(member + other) % lanes_.size()];
        for (std::size_t block = 0; take(lane, seen, block);) {
          job_(member, block, block + 1);
          mine.done.store(mine.done.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        }
      }
    }
  }

  /// Spins for as long as a gap between two steps of a small policy, longer would steal a core from other processes
  /// on this machine; then sleeps. Does not spin where there are more threads than CPUs.
  std::uint32_t await_call(Lane& lane, std::uint32_t seen) const noexcept {
    std::uint32_t now = seen;
    for (SpinWait waiter(sizer_.spins() ? spin_nanoseconds : 0); !waiter.is_over(); waiter.spin())
      if ((now = lane.start.load(std::memory_order_acquire)) != seen) return now;
    lane.sleeps.store(true);
    while ((now = lane.start.load()) == seen) sleep_while(lane.start, seen);
    lane.sleeps.store(false, std::memory_order_relaxed);
    return now;
  }

  static void call(Lane& lane, std::uint32_t ticket) noexcept {
    lane.start.store(ticket);  // in one order with `sleeps`: either it is seen there, or the sleeper is seen here
    if (lane.sleeps.load()) wake_one(lane.start);
  }

  void stop() noexcept {
    if (fork_generation().load(std::memory_order_relaxed) != generation_) {
      // In a forked child the threads are not there: joining would never return, destroying them ends the process.
      static_cast<void>(threads_.release());
      return;
    }
    stopping_.store(true, std::memory_order_release);
    for (Lane& lane : lanes_) call(lane, lane.start.load(std::memory_order_relaxed) + 1);
    for (auto& thread : *threads_) thread.join();
  }

  const int size_;
  const std::size_t blocks_;
  const std::uint32_t generation_ = fork_generation().load(std::memory_order_relaxed);
  JobRef job_;  ///< read only after a block was taken, which orders it
  std::uint32_t ticket_ = 0;
  std::uint32_t done_elsewhere_ = 0;
  std::atomic<bool> stopping_{false};
  std::vector<Lane> lanes_;
  TeamSizer sizer_;
  std::unique_ptr<std::vector<std::thread>> threads_ = std::make_unique<std::vector<std::thread>>();
};

}  // namespace penstock
