/// Steps environments without waiting for all of them: some are sent, and batches come back as they are done.
///
/// Threads take chunks of what was sent from one queue, without a lock, and never wait while they hold a result: the
/// rows of batches to come are there before they are needed. The caller works too while it waits, unless steps take so
/// long that it would miss results: then a thread more works in its place. One thread sends and receives. With
/// `deterministic`, batch j of a turn holds environments [j * batch_size, (j + 1) * batch_size) in order, and what went
/// wrong in one of them is told when it is that batch's turn; otherwise a batch holds whichever were done first.
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

#include "penstock/async_queue.hpp"
#include "penstock/rows.hpp"
#include "penstock/threads.hpp"

namespace penstock {

struct AsyncSettings {
  std::size_t batch_size = 1;
  bool deterministic = false;  ///< batch_size must then divide the pool
  int num_threads = 1;         ///< the caller included
  bool thread_affinity = false;
  Autoreset autoreset = Autoreset::next_step;
  bool (*interrupted)() = nullptr;  ///< as in PoolSettings
};

class AsyncDriver {
 public:
  AsyncDriver(AnyPool& pool, const AsyncSettings& settings)
      : pool_(pool), settings_(settings), bytes_(pool.description()), queue_(pool.size()),
        actions_(pool.size() * bytes_.action), resets_(pool.size()), under_way_(pool.size()),
        batches_(settings.deterministic ? pool.size() / settings.batch_size
                                        : (pool.size() + settings.batch_size - 1) / settings.batch_size + 1),
        most_(std::clamp<std::size_t>(settings.batch_size / (2 * static_cast<std::size_t>(settings.num_threads)), 1,
                                      AsyncQueue::most)),
        spins_(static_cast<std::size_t>(settings.num_threads) <= usable_cpus().size()) {
    const int deputy = settings.num_threads, members = settings.num_threads > 1 ? settings.num_threads + 1 : 1;
    for (int member = 0; member < members; ++member) stages_.emplace_back(bytes_, most_, settings.autoreset);
    try {
      for (int member = 1; member < members; ++member) {
        threads_->emplace_back([this, member, deputy] {
          if (member == deputy) stand_in(stages_[static_cast<std::size_t>(member)]);
          else serve(stages_[static_cast<std::size_t>(member)]);
        });
        if (settings.thread_affinity) pin(threads_->back(), member);
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~AsyncDriver() { stop(); }
  AsyncDriver(const AsyncDriver&) = delete;
  AsyncDriver& operator=(const AsyncDriver&) = delete;

  /// How many batches must have buffers at any time, before something is sent.
  [[nodiscard]] std::size_t batches() const noexcept { return batches_.size(); }
  /// Gives batch `index` its buffers: at the start, and after it was received.
  void place(std::size_t index, const StepBuffers& out, std::int32_t* env_id) noexcept {
    batches_[index].out = out;
    batches_[index].env_id = env_id;
  }
  /// How many environments were sent and did not come back.
  [[nodiscard]] std::size_t under_way() const noexcept { return sent_; }

  /// Sends environments to step, with an action each. Throws, and sends nothing, unless all can.
  void send(const void* actions, std::span<const std::int32_t> environments) {
    require_threads();
    mark(environments, "send");
    try {
      pool_.check_rows(actions, environments);
    } catch (...) {
      for (const std::int32_t env : environments) under_way_[index_of(env)] = false;
      throw;
    }
    const auto* rows = static_cast<const std::byte*>(actions);
    for (const std::int32_t env : environments) {
      std::memcpy(actions_.data() + index_of(env) * bytes_.action, rows, bytes_.action);
      resets_[index_of(env)] = false;
      rows += bytes_.action;
    }
    push(environments);
  }

  /// Sends environments to start an episode; those with a seed (else nullptr) get a new generator.
  void reset(std::span<const std::int32_t> environments, std::span<const std::uint64_t* const> seeds) {
    require_threads();
    mark(environments, "async_reset");
    try {
      for (std::size_t i = 0; i < environments.size(); ++i) pool_.seed(index_of(environments[i]), seeds[i]);
    } catch (...) {
      for (const std::int32_t env : environments) under_way_[index_of(env)] = false;
      throw;
    }
    for (const std::int32_t env : environments) resets_[index_of(env)] = true;
    push(environments);
  }

  /// Waits for the next batch, steps meanwhile, and gives its index. Throws what an environment threw, which is then no
  /// longer under way; Interrupted, after which it may be called again; std::logic_error if no batch can come.
  std::size_t receive() {
    require_threads();
    const std::size_t index = turn_ % batches_.size();
    Batch& batch = batches_[index];
    std::int64_t polled = 0;
    for (Patience patience(spins_ ? spin_nanoseconds : 0);;) {
      if (has_failed_.load(std::memory_order_acquire)) raise_due(index);
      if (batch.done.load(std::memory_order_acquire) == settings_.batch_size) break;
      require_coming();
      if (!caller_helps() || !work(stages_.front())) {
        if (!patience.is_over()) {
          patience.spin();
          continue;
        }
        wait_for_news(index);
      } else if (brief()) {
        continue;
      }
      const std::int64_t now = nanoseconds_now();
      if (polled == 0) polled = now;
      if (now - polled < poll_nanoseconds) continue;
      polled = now;
      if (settings_.interrupted != nullptr && settings_.interrupted()) throw Interrupted();
    }
    batch.done.store(0, std::memory_order_relaxed);
    for (std::size_t row = 0; row < settings_.batch_size; ++row) under_way_[index_of(batch.env_id[row])] = false;
    sent_ -= settings_.batch_size;
    ++turn_;
    return index;
  }

  /// Takes back what was sent and not begun, waits for the rest and drops all results: environments stand anywhere.
  void drain() {
    require_threads();
    queue_.clear();
    for (Patience patience(spin_nanoseconds); !queue_.is_settled();) patience.wait();
    for (Batch& batch : batches_) batch.done.store(0, std::memory_order_relaxed);
    next_row_.store(0, std::memory_order_relaxed);
    has_failed_.store(false, std::memory_order_relaxed);
    failures_.clear();
    std::fill(under_way_.begin(), under_way_.end(), false);
    turn_ = sent_ = 0;
  }

  /// Ends the threads when they are done with what they have in hand; then only destruction is left.
  void stop() noexcept {
    if (fork_generation().load(std::memory_order_relaxed) != generation_) {
      static_cast<void>(threads_.release());  // as in Workers: they are not there
      return;
    }
    if (threads_ == nullptr) return;
    queue_.stop();
    for (auto& thread : *threads_) thread.join();
    threads_.reset();
  }

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

  /// Not where a step was slow of late: the caller would be caught in one while batches are ready.
  [[nodiscard]] bool caller_helps() const noexcept {
    const std::int64_t until = slow_until_.load(std::memory_order_relaxed);
    return settings_.num_threads == 1 || until == 0 || nanoseconds_now() > until;
  }

  void require_threads() const {
    if (settings_.num_threads > 1 && fork_generation().load(std::memory_order_relaxed) != generation_)
      throw std::runtime_error("a pool's threads do not survive a fork: make it in the process that uses it");
  }

  void mark(std::span<const std::int32_t> environments, const char* who) {
    for (std::size_t i = 0; i < environments.size(); ++i) {
      const std::int32_t env = environments[i];
      const bool exists = env >= 0 && index_of(env) < pool_.size();
      if (exists && !under_way_[index_of(env)]) {
        under_way_[index_of(env)] = true;
        continue;
      }
      const auto marked = environments.first(i);
      const bool twice = std::find(marked.begin(), marked.end(), env) != marked.end();
      for (const std::int32_t other : marked) under_way_[index_of(other)] = false;
      throw std::invalid_argument(std::string(who) + ": environment " + std::to_string(env) +
                                  (!exists ? " is not one of 0 to " + std::to_string(pool_.size() - 1)
                                   : twice ? " is named twice"
                                           : " is under way: recv() its result first"));
    }
  }

  void push(std::span<const std::int32_t> environments) {
    sent_ += environments.size();
    const std::int64_t row = row_nanoseconds_.load(std::memory_order_relaxed);
    // To wake a thread costs microseconds: what takes no longer is left to those that spin, and to the caller's recv.
    const bool worth = row == 0 || !caller_helps() || row * static_cast<std::int64_t>(environments.size()) > 2 * chunk_nanoseconds;
    queue_.push(environments, worth);
  }

  /// Throws if the next batch cannot be filled by what is under way.
  void require_coming() const {
    if (!settings_.deterministic) {
      if (sent_ >= settings_.batch_size) return;
      throw std::logic_error("recv() waits for " + std::to_string(settings_.batch_size) + " environments but " +
                             std::to_string(sent_) + " are under way: async_reset() or send() first");
    }
    const std::size_t first = turn_ % batches_.size() * settings_.batch_size;
    for (std::size_t env = first; env < first + settings_.batch_size; ++env)
      if (!under_way_[env])
        throw std::logic_error("recv() waits for environments " + std::to_string(first) + " to " +
                               std::to_string(first + settings_.batch_size - 1) + " but " + std::to_string(env) +
                               " is not under way: async_reset() or send() it first");
  }

  /// The failure that batch `index` shows, or the end; under the lock. In a rotation it is the first in order once all of
  /// the batch are stepped, or it would depend on how threads met.
  std::vector<Failure>::iterator due(std::size_t index) {
    if (!settings_.deterministic) return failures_.begin();
    const std::size_t first = index * settings_.batch_size, last = first + settings_.batch_size;
    auto found = failures_.end();
    std::size_t failed = 0;
    for (auto failure = failures_.begin(); failure != failures_.end(); ++failure) {
      if (index_of(failure->env) < first || index_of(failure->env) >= last) continue;
      ++failed;
      if (found == failures_.end() || failure->env < found->env) found = failure;
    }
    std::size_t waited_for = 0;
    for (std::size_t env = first; env < last; ++env) waited_for += under_way_[env];
    return batches_[index].done.load(std::memory_order_acquire) + failed == waited_for ? found : failures_.end();
  }

  void raise_due(std::size_t index) {
    const std::lock_guard lock(mutex_);
    const auto found = due(index);
    if (found == failures_.end()) return;
    const Failure failure = *found;
    failures_.erase(found);
    has_failed_.store(!failures_.empty(), std::memory_order_relaxed);
    under_way_[index_of(failure.env)] = false;
    --sent_;
    std::rethrow_exception(failure.error);
  }

  void serve(Stage& stage) noexcept {
    while (!queue_.is_stopping())
      if (!work(stage)) queue_.wait(spins_);
  }

  /// The thread that works where the caller does not.
  void stand_in(Stage& stage) noexcept {
    while (!queue_.is_stopping()) {
      if (caller_helps()) queue_.sleep();
      else if (!work(stage)) queue_.wait(spins_);
    }
  }

  /// Steps one chunk; false if there is none.
  bool work(Stage& stage) noexcept {
    std::array<std::int32_t, AsyncQueue::most> chunk;
    const std::int64_t row = row_nanoseconds_.load(std::memory_order_relaxed);
    const std::size_t wanted =
        row == 0 ? 1 : std::clamp<std::size_t>(static_cast<std::size_t>(chunk_nanoseconds / row), 1, most_);
    const std::size_t count = queue_.take(chunk, wanted);
    if (count == 0) return false;
    const std::int64_t begin = nanoseconds_now();
    if (settings_.deterministic) step_in_place({chunk.data(), count}, stage);
    else step_aside({chunk.data(), count}, stage);
    queue_.settle(count);
    const std::int64_t end = nanoseconds_now();
    const std::int64_t sample = std::max<std::int64_t>((end - begin) / static_cast<std::int64_t>(count), 1);
    if (sample > slow_nanoseconds) slow_until_.store(end + slow_for_nanoseconds, std::memory_order_relaxed);
    row_nanoseconds_.store(row == 0 ? sample : std::max<std::int64_t>(row + (sample - row) / 8, 1),
                           std::memory_order_relaxed);
    return true;
  }

  /// How many, from the first, are all to be stepped or all to be reset, and satisfy the rest.
  template <class Also>
  std::size_t alike(std::span<const std::int32_t> chunk, Also&& also) const noexcept {
    std::size_t count = 1;
    while (count < chunk.size() && resets_[index_of(chunk[count])] == resets_[index_of(chunk[0])] && also(count)) ++count;
    return count;
  }

  /// Steps or resets environments that are alike into rows from `first_row` on; how many until one failed, who is noted.
  std::size_t make(std::span<const std::int32_t> chunk, Stage& stage, std::size_t first_row,
                   const StepBuffers& out) noexcept {
    std::exception_ptr error;
    std::size_t made = 0;
    if (resets_[index_of(chunk[0])]) {
      made = pool_.reset_rows(chunk, first_row, out, error);
    } else {
      for (std::size_t i = 0; i < chunk.size(); ++i)
        std::memcpy(stage.actions() + i * bytes_.action, actions_.data() + index_of(chunk[i]) * bytes_.action,
                    bytes_.action);
      made = pool_.step_rows(stage.actions(), chunk, first_row, out, error);
    }
    if (error != nullptr) {
      {
        const std::lock_guard lock(mutex_);
        failures_.push_back({chunk[made], std::move(error)});  // the last reference: the caller frees it
      }
      has_failed_.store(true);
      tell();
    }
    return made;
  }

  /// Each into its own row of its own batch.
  void step_in_place(std::span<const std::int32_t> chunk, Stage& stage) noexcept {
    while (!chunk.empty()) {
      const std::size_t first = index_of(chunk[0]), first_row = first % settings_.batch_size;
      Batch& batch = batches_[first / settings_.batch_size];
      const std::size_t count = alike(chunk, [&](std::size_t i) {
        return index_of(chunk[i]) == first + i && first_row + i < settings_.batch_size;
      });
      const std::size_t made = make(chunk.first(count), stage, first_row, batch.out);
      for (std::size_t i = 0; i < made; ++i) batch.env_id[first_row + i] = chunk[i];
      finish(batch, made);
      chunk = chunk.subspan(std::min(made + (made < count), count));
    }
  }

  /// Into rows of the thread's own, which are copied to where they belong when it is known who is done first.
  void step_aside(std::span<const std::int32_t> chunk, Stage& stage) noexcept {
    std::array<std::int32_t, AsyncQueue::most> made_by;
    std::size_t staged = 0;
    for (std::span<const std::int32_t> rest = chunk; !rest.empty();) {
      const std::size_t count = alike(rest, [](std::size_t) { return true; });
      const std::size_t made = make(rest.first(count), stage, staged, stage.out());
      std::copy_n(rest.begin(), made, made_by.begin() + static_cast<std::ptrdiff_t>(staged));
      staged += made;
      rest = rest.subspan(std::min(made + (made < count), count));
    }
    // Ordered, so that who was sent long ago sees the buffers of the batch that its row has come to lie in: somebody who
    // was sent after those were placed took a row before.
    std::size_t row = next_row_.fetch_add(staged, std::memory_order_acq_rel);
    for (std::size_t done = 0; done < staged;) {
      Batch& batch = batches_[row / settings_.batch_size % batches_.size()];
      const std::size_t target = row % settings_.batch_size;
      const std::size_t count = std::min(staged - done, settings_.batch_size - target);
      copy_rows(bytes_, stage.out(), done, batch.out, target, count, settings_.autoreset);
      std::copy_n(made_by.begin() + static_cast<std::ptrdiff_t>(done), count, batch.env_id + target);
      finish(batch, count);
      done += count;
      row += count;
    }
  }

  void finish(Batch& batch, std::size_t rows) noexcept {
    if (rows > 0 && (batch.done.fetch_add(rows) + rows == settings_.batch_size || has_failed_.load())) tell();
  }

  /// After something that receive() may wait for.
  void tell() noexcept {
    if (!waiting_.load()) return;
    const std::lock_guard lock(mutex_);
    news_.notify_one();
  }

  /// Until there is some, or for a little while: signals must be looked for.
  void wait_for_news(std::size_t index) {
    std::unique_lock lock(mutex_);
    waiting_.store(true);
    if (batches_[index].done.load() != settings_.batch_size && due(index) == failures_.end())
      news_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::milliseconds(50));
    waiting_.store(false);
  }

  AnyPool& pool_;
  const AsyncSettings settings_;
  const RowBytes bytes_;
  const std::uint32_t generation_ = fork_generation().load(std::memory_order_relaxed);
  AsyncQueue queue_;
  std::vector<std::byte> actions_;     ///< by environment; this and resets_: the caller's until pushed, then the threads'
  std::vector<std::uint8_t> resets_;
  std::vector<std::uint8_t> under_way_;  ///< this, turn_ and sent_: the caller's
  std::size_t turn_ = 0, sent_ = 0;
  std::vector<Batch> batches_;
  const std::size_t most_;
  const bool spins_;
  std::deque<Stage> stages_;
  std::atomic<std::int64_t> row_nanoseconds_{0};  ///< the mean
  std::atomic<std::int64_t> slow_until_{0};
  alignas(64) std::atomic<std::size_t> next_row_{0};
  alignas(64) std::atomic<bool> has_failed_{false};
  std::atomic<bool> waiting_{false};
  std::mutex mutex_;  ///< for waiting and for failures, neither of which a step has
  std::condition_variable news_;
  std::vector<Failure> failures_;
  std::unique_ptr<std::vector<std::thread>> threads_ = std::make_unique<std::vector<std::thread>>();
};

}  // namespace penstock
