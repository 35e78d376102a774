/// Asynchronous stepping: environments are sent, and batches of results come back as they are finished.
///
/// Threads take chunks of what was sent from one queue, without a lock, and never wait while they hold a result: the
/// rows of batches to come are there before they are needed. The caller works too while it waits, unless steps take so
/// long that it would miss results: then a thread more works in its place. One thread sends and receives. With
/// `deterministic`, batch j of a turn holds environments [j * batch_size, (j + 1) * batch_size) in order, and what went
/// wrong in one of them is reported when it is that batch's turn; otherwise a batch holds whichever were done first.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/engine/work_queue.hpp"
#include "penstock/engine/row_buffers.hpp"
#include "penstock/threads/spin_wait.hpp"
#include "penstock/threads/system.hpp"

namespace penstock {

struct AsyncSettings {
  std::size_t batch_size = 1;
  bool deterministic = false;  ///< batch_size must then divide the pool
  int num_threads = 1;         ///< the caller included
  bool thread_affinity = false;
  Autoreset autoreset = Autoreset::next_step;
  bool (*interrupted)() = nullptr;  ///< as in PoolSettings
};

class AsyncPool {
 public:
  AsyncPool(AnyPool& pool, const AsyncSettings& settings)
      : pool_(pool), settings_(settings), bytes_(pool.description()), queue_(pool.size()),
        actions_(pool.size() * bytes_.action), resets_(pool.size()), pending_(pool.size()),
        batches_(settings.deterministic ? pool.size() / settings.batch_size
                                        : (pool.size() + settings.batch_size - 1) / settings.batch_size + 1),
        max_chunk_(std::clamp<std::size_t>(
            settings.num_threads == 1 ? settings.batch_size
                                      : settings.batch_size / (2 * static_cast<std::size_t>(settings.num_threads)),
            1, WorkQueue::max_chunk)),
        spins_(static_cast<std::size_t>(settings.num_threads) <= usable_cpus().size()) {
    const int deputy = settings.num_threads, members = settings.num_threads > 1 ? settings.num_threads + 1 : 1;
    for (int member = 0; member < members; ++member) staging_.emplace_back(bytes_, max_chunk_, settings.autoreset);
    try {
      for (int member = 1; member < members; ++member) {
        start_thread(*threads_, settings.num_threads, [this, member, deputy] {
          if (member == deputy) stand_in(staging_[static_cast<std::size_t>(member)]);
          else serve(staging_[static_cast<std::size_t>(member)]);
        });
        if (settings.thread_affinity) pin(threads_->back(), member);
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~AsyncPool() { stop(); }
  AsyncPool(const AsyncPool&) = delete;
  AsyncPool& operator=(const AsyncPool&) = delete;

  /// Returns the number of batches that must have buffers before anything is sent.
  [[nodiscard]] std::size_t batches() const noexcept { return batches_.size(); }
  /// Sets the buffers of batch `index`: at the start, and each time it was received.
  void place(std::size_t index, const StepBuffers& out, std::int32_t* env_id) noexcept {
    batches_[index].out = out;
    batches_[index].env_id = env_id;
  }
  /// Returns the number of environments that were sent and not yet received.
  [[nodiscard]] std::size_t under_way() const noexcept { return sent_; }

  /// Sends environments to step, with an action each. Throws, and sends nothing, unless all can.
  void send(const void* actions, std::span<const std::int32_t> environments);

  /// Sends environments to start an episode; those with a seed (else nullptr) get a new generator.
  void reset(std::span<const std::int32_t> environments, std::span<const std::uint64_t* const> seeds);

  /// Waits for the next batch, steps meanwhile, and gives its index. Throws what an environment threw, which is then no
  /// longer under way; Interrupted, after which it may be called again; std::logic_error if no batch can come.
  std::size_t receive();

  /// Cancels what has not begun, waits for the rest and drops all results. The environments' states are then undefined.
  void drain();

  /// Joins the threads after their current chunks. Only destruction may follow.
  void stop() noexcept;

 private:
  struct Batch {
    StepBuffers out{};
    std::int32_t* env_id = nullptr;
    std::atomic<std::size_t> done{0};
  };
  struct Failure {
    std::int32_t env;
    std::exception_ptr error;
  };
  static constexpr std::int64_t chunk_nanoseconds = 10'000, poll_nanoseconds = 100'000'000;
  static constexpr std::int64_t slow_nanoseconds = 1'000'000, slow_for_nanoseconds = 1'000'000'000;

  static std::size_t index_of(std::int32_t env) noexcept { return static_cast<std::size_t>(env); }
  [[nodiscard]] bool brief() const noexcept {
    return row_nanoseconds_.load(std::memory_order_relaxed) < chunk_nanoseconds;
  }

  /// Returns whether the caller steps too: not after a slow step, which could hold it up while batches are ready.
  [[nodiscard]] bool caller_helps() const noexcept {
    const std::int64_t until = slow_until_.load(std::memory_order_relaxed);
    return settings_.num_threads == 1 || until == 0 || nanoseconds_now() > until;
  }

  void require_threads() const {
    if (settings_.num_threads > 1 && fork_generation().load(std::memory_order_relaxed) != generation_)
      throw std::runtime_error("a pool's threads do not survive a fork: make it in the process that uses it");
  }

  void mark(std::span<const std::int32_t> environments, const char* who);

  void push(std::span<const std::int32_t> environments);

  /// Throws if the next batch cannot be filled by what is under way.
  void require_coming() const;

  /// Returns the failure that batch `index` reports, or the end; requires the lock. In a rotation it is the first in
  /// order once all of the batch are stepped, or it would depend on how threads met.
  std::vector<Failure>::iterator due(std::size_t index);

  void raise_due(std::size_t index);

  void serve(RowStaging& staging) noexcept;

  /// The loop of the spare thread, which works while the caller does not.
  void stand_in(RowStaging& staging) noexcept;

  /// Steps one chunk; returns false if the queue is empty.
  bool work(RowStaging& staging) noexcept;

  /// Returns the length of the prefix whose environments are all stepped or all reset, and satisfy `also`.
  template <class Also>
  std::size_t alike(std::span<const std::int32_t> chunk, Also&& also) const noexcept;

  /// Steps or resets a uniform chunk into rows from `first_row` on. Returns the number finished before a failure, which
  /// is recorded.
  std::size_t make(std::span<const std::int32_t> chunk, RowStaging& staging, std::size_t first_row,
                   const StepBuffers& out) noexcept;

  /// Steps each environment into its fixed row of its fixed batch.
  void step_in_place(std::span<const std::int32_t> chunk, RowStaging& staging) noexcept;

  /// Steps into the next rows of the batch, where no other thread takes any.
  void step_alone(std::span<const std::int32_t> chunk, RowStaging& staging) noexcept;

  /// Steps into the thread's staging rows, and copies them into batches in the order of completion.
  void step_staged(std::span<const std::int32_t> chunk, RowStaging& staging) noexcept;

  void finish(Batch& batch, std::size_t rows) noexcept;

  /// Wakes receive() if it waits.
  void notify() noexcept;

  /// Waits for a notification, or for 50 ms, after which signals must be polled.
  void wait_for_notification(std::size_t index);

  AnyPool& pool_;
  const AsyncSettings settings_;
  const RowBytes bytes_;
  const std::uint32_t generation_ = fork_generation().load(std::memory_order_relaxed);
  WorkQueue queue_;
  std::vector<std::byte> actions_;     ///< by environment; like resets_ the caller's until pushed, then the threads'
  std::vector<std::uint8_t> resets_;
  bool has_reset_ = true;              ///< any of resets_ may be set; the caller's
  std::vector<std::uint8_t> pending_;  ///< this, turn_ and sent_: the caller's
  std::size_t turn_ = 0, sent_ = 0;
  std::vector<Batch> batches_;
  const std::size_t max_chunk_;
  const bool spins_;
  std::deque<RowStaging> staging_;
  std::atomic<std::int64_t> row_nanoseconds_{0};  ///< the mean
  std::atomic<std::int64_t> slow_until_{0};
  alignas(64) std::atomic<std::size_t> next_row_{0};
  alignas(64) std::atomic<bool> has_failed_{false};
  std::atomic<bool> waiting_{false};
  std::mutex mutex_;  ///< for waiting and for failures, neither of which a step has
  std::condition_variable notified_;
  std::vector<Failure> failures_;
  std::unique_ptr<std::vector<std::thread>> threads_ = std::make_unique<std::vector<std::thread>>();
};

}  // namespace penstock

#include "penstock/engine/async_batches.hpp"
#include "penstock/engine/async_threads.hpp"
