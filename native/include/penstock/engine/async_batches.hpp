/// AsyncPool: the caller's side: sends environments, and receives batches of results.
#pragma once

#include "penstock/engine/async_pool.hpp"

namespace penstock {

inline void AsyncPool::send(const void* actions, std::span<const std::int32_t> environments) {
  require_threads();
  mark(environments, "send");
  try {
    pool_.check_rows(actions, environments);
  } catch (...) {
    for (const std::int32_t env : environments) pending_[index_of(env)] = false;
    throw;
  }
  scatter_rows(static_cast<const std::byte*>(actions), environments, actions_.data(), bytes_.action);
  if (has_reset_) {
    for (const std::int32_t env : environments) resets_[index_of(env)] = false;
    has_reset_ = std::any_of(resets_.begin(), resets_.end(), [](std::uint8_t resets) { return resets; });
  }
  push(environments);
}

inline void AsyncPool::reset(std::span<const std::int32_t> environments, std::span<const std::uint64_t* const> seeds) {
  require_threads();
  mark(environments, "async_reset");
  try {
    for (std::size_t i = 0; i < environments.size(); ++i) pool_.seed(index_of(environments[i]), seeds[i]);
  } catch (...) {
    for (const std::int32_t env : environments) pending_[index_of(env)] = false;
    throw;
  }
  for (const std::int32_t env : environments) resets_[index_of(env)] = true;
  has_reset_ = true;
  push(environments);
}

inline std::size_t AsyncPool::receive() {
  require_threads();
  const std::size_t index = turn_ % batches_.size();
  Batch& batch = batches_[index];
  std::int64_t polled = 0;
  for (SpinWait waiter(spins_ ? spin_nanoseconds : 0);;) {
    if (has_failed_.load(std::memory_order_acquire)) raise_due(index);
    if (batch.done.load(std::memory_order_acquire) == settings_.batch_size) break;
    require_coming();
    if (!caller_helps() || !work(staging_.front())) {
      if (!waiter.is_over()) {
        waiter.spin();
        continue;
      }
      wait_for_notification(index);
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
  for (std::size_t row = 0; row < settings_.batch_size; ++row) pending_[index_of(batch.env_id[row])] = false;
  sent_ -= settings_.batch_size;
  ++turn_;
  return index;
}

inline void AsyncPool::drain() {
  require_threads();
  queue_.clear();
  for (SpinWait waiter(spin_nanoseconds); !queue_.is_drained();) waiter.wait();
  for (Batch& batch : batches_) batch.done.store(0, std::memory_order_relaxed);
  next_row_.store(0, std::memory_order_relaxed);
  has_failed_.store(false, std::memory_order_relaxed);
  failures_.clear();
  std::fill(pending_.begin(), pending_.end(), false);
  turn_ = sent_ = 0;
}

inline void AsyncPool::mark(std::span<const std::int32_t> environments, const char* who) {
  const std::size_t size = pool_.size();
  for (std::size_t i = 0; i < environments.size(); ++i) {
    const std::int32_t env = environments[i];
    const bool exists = env >= 0 && index_of(env) < size;
    if (exists && !pending_[index_of(env)]) {
      pending_[index_of(env)] = true;
      continue;
    }
    const auto marked = environments.first(i);
    const bool twice = std::find(marked.begin(), marked.end(), env) != marked.end();
    for (const std::int32_t other : marked) pending_[index_of(other)] = false;
    throw std::invalid_argument(std::string(who) + ": environment " + std::to_string(env) +
                                (!exists ? " is not one of 0 to " + std::to_string(size - 1)
                                 : twice ? " is named twice"
                                         : " is under way: recv() its result first"));
  }
}

inline void AsyncPool::push(std::span<const std::int32_t> environments) {
  sent_ += environments.size();
  const std::int64_t row = row_nanoseconds_.load(std::memory_order_relaxed);
  // To wake a thread costs microseconds: what takes no longer is left to those that spin, and to the caller's recv.
  const bool worth = row == 0 || !caller_helps() || row * static_cast<std::int64_t>(environments.size()) > 2 * chunk_nanoseconds;
  queue_.push(environments, worth);
}

inline void AsyncPool::require_coming() const {
  if (!settings_.deterministic) {
    if (sent_ >= settings_.batch_size) return;
    throw std::logic_error("recv() waits for " + std::to_string(settings_.batch_size) + " environments but " +
                           std::to_string(sent_) + " are under way: async_reset() or send() first");
  }
  const std::size_t first = turn_ % batches_.size() * settings_.batch_size;
  for (std::size_t env = first; env < first + settings_.batch_size; ++env)
    if (!pending_[env])
      throw std::logic_error("recv() waits for environments " + std::to_string(first) + " to " +
                             std::to_string(first + settings_.batch_size - 1) + " but " + std::to_string(env) +
                             " is not under way: async_reset() or send() it first");
}

inline auto AsyncPool::due(std::size_t index) -> std::vector<Failure>::iterator {
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
  for (std::size_t env = first; env < last; ++env) waited_for += pending_[env];
  return batches_[index].done.load(std::memory_order_acquire) + failed == waited_for ? found : failures_.end();
}

inline void AsyncPool::raise_due(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const auto found = due(index);
  if (found == failures_.end()) return;
  const Failure failure = *found;
  failures_.erase(found);
  has_failed_.store(!failures_.empty(), std::memory_order_relaxed);
  pending_[index_of(failure.env)] = false;
  --sent_;
  std::rethrow_exception(failure.error);
}

inline void AsyncPool::wait_for_notification(std::size_t index) {
  std::unique_lock lock(mutex_);
  waiting_.store(true);
  if (batches_[index].done.load() != settings_.batch_size && due(index) == failures_.end())
    notified_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  waiting_.store(false);
}

}  // namespace penstock
