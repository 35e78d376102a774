/// AsyncPool: the threads' side: they take chunks from the queue, step them and fill batches.
#pragma once

#include "penstock/engine/async_pool.hpp"

namespace penstock {

inline void AsyncPool::stop() noexcept {
  if (fork_generation().load(std::memory_order_relaxed) != generation_) {
    static_cast<void>(threads_.release());  // as in ThreadTeam: they are not there
    return;
  }
  if (threads_ == nullptr) return;
  queue_.stop();
  for (auto& thread : *threads_) thread.join();
  threads_.reset();
}

inline void AsyncPool::serve(RowStaging& staging) noexcept {
  while (!queue_.is_stopping())
    if (!work(staging)) queue_.wait(spins_);
}

inline void AsyncPool::stand_in(RowStaging& staging) noexcept {
  while (!queue_.is_stopping()) {
    if (caller_helps()) queue_.sleep();
    else if (!work(staging)) queue_.wait(spins_);
  }
}

inline bool AsyncPool::work(RowStaging& staging) noexcept {
  std::array<std::int32_t, WorkQueue::max_chunk> chunk;
  const std::int64_t row = row_nanoseconds_.load(std::memory_order_relaxed);
  const std::size_t wanted =
      row == 0 ? 1 : std::clamp<std::size_t>(static_cast<std::size_t>(chunk_nanoseconds / row), 1, max_chunk_);
  const std::size_t count = queue_.take(chunk, wanted);
  if (count == 0) return false;
  const std::int64_t begin = nanoseconds_now();
  if (settings_.deterministic) step_in_place({chunk.data(), count}, staging);
  else if (settings_.num_threads == 1) step_alone({chunk.data(), count}, staging);
  else step_staged({chunk.data(), count}, staging);
  queue_.mark_done(count);
  const std::int64_t end = nanoseconds_now();
  const std::int64_t sample = std::max<std::int64_t>((end - begin) / static_cast<std::int64_t>(count), 1);
  if (sample > slow_nanoseconds) slow_until_.store(end + slow_for_nanoseconds, std::memory_order_relaxed);
  row_nanoseconds_.store(row == 0 ? sample : std::max<std::int64_t>(row + (sample - row) / 8, 1),
                         std::memory_order_relaxed);
  return true;
}

template <class Also>
inline std::size_t AsyncPool::alike(std::span<const std::int32_t> chunk, Also&& also) const noexcept {
  std::size_t count = 1;
  while (count < chunk.size() && resets_[index_of(chunk[count])] == resets_[index_of(chunk[0])] && also(count)) ++count;
  return count;
}

inline std::size_t AsyncPool::make(std::span<const std::int32_t> chunk, RowStaging& staging, std::size_t first_row,
                                   const StepBuffers& out) noexcept {
  std::exception_ptr error;
  std::size_t made = 0;
  if (resets_[index_of(chunk[0])]) {
    made = pool_.reset_rows(chunk, first_row, out, error);
  } else {
    gather_rows(actions_.data(), chunk, staging.actions(), bytes_.action);
    made = pool_.step_rows(staging.actions(), chunk, first_row, out, error);
  }
  if (error != nullptr) {
    {
      const std::lock_guard lock(mutex_);
      failures_.push_back({chunk[made], std::move(error)});  // the last reference: the caller frees it
      has_failed_.store(true);  // with the lock, as where it is taken back: later it could stand alone for good
    }
    notify();
  }
  return made;
}

inline void AsyncPool::step_in_place(std::span<const std::int32_t> chunk, RowStaging& staging) noexcept {
  while (!chunk.empty()) {
    const std::size_t first = index_of(chunk[0]), first_row = first % settings_.batch_size;
    Batch& batch = batches_[first / settings_.batch_size];
    const std::size_t count = alike(chunk, [&](std::size_t i) {
      return index_of(chunk[i]) == first + i && first_row + i < settings_.batch_size;
    });
    const std::size_t made = make(chunk.first(count), staging, first_row, batch.out);
    for (std::size_t i = 0; i < made; ++i) batch.env_id[first_row + i] = chunk[i];
    finish(batch, made);
    chunk = chunk.subspan(std::min(made + (made < count), count));
  }
}

inline void AsyncPool::step_alone(std::span<const std::int32_t> chunk, RowStaging& staging) noexcept {
  for (std::size_t row = next_row_.load(std::memory_order_relaxed); !chunk.empty();) {
    Batch& batch = batches_[row / settings_.batch_size % batches_.size()];
    const std::size_t target = row % settings_.batch_size;
    const std::size_t count = alike(chunk.first(std::min(chunk.size(), settings_.batch_size - target)),
                                    [](std::size_t) { return true; });
    const std::size_t made = make(chunk.first(count), staging, target, batch.out);
    std::copy_n(chunk.begin(), made, batch.env_id + target);
    next_row_.store(row += made, std::memory_order_relaxed);
    finish(batch, made);
    chunk = chunk.subspan(std::min(made + (made < count), count));
  }
}

inline void AsyncPool::step_staged(std::span<const std::int32_t> chunk, RowStaging& staging) noexcept {
  std::array<std::int32_t, WorkQueue::max_chunk> made_by;
  std::size_t staged = 0;
  for (std::span<const std::int32_t> rest = chunk; !rest.empty();) {
    const std::size_t count = alike(rest, [](std::size_t) { return true; });
    const std::size_t made = make(rest.first(count), staging, staged, staging.out());
    std::copy_n(rest.begin(), made, made_by.begin() + static_cast<std::ptrdiff_t>(staged));
    staged += made;
    rest = rest.subspan(std::min(made + (made < count), count));
  }
  // Acquire and release, so that an environment sent long ago sees the buffers of the batch that its row is now in: one
  // that was sent after those were set took an earlier row.
  std::size_t row = next_row_.fetch_add(staged, std::memory_order_acq_rel);
  for (std::size_t done = 0; done < staged;) {
    Batch& batch = batches_[row / settings_.batch_size % batches_.size()];
    const std::size_t target = row % settings_.batch_size;
    const std::size_t count = std::min(staged - done, settings_.batch_size - target);
    copy_rows(bytes_, staging.out(), done, batch.out, target, count, settings_.autoreset);
    std::copy_n(made_by.begin() + static_cast<std::ptrdiff_t>(done), count, batch.env_id + target);
    finish(batch, count);
    done += count;
    row += count;
  }
}

inline void AsyncPool::finish(Batch& batch, std::size_t rows) noexcept {
  if (rows > 0 && (batch.done.fetch_add(rows) + rows == settings_.batch_size || has_failed_.load())) notify();
}

inline void AsyncPool::notify() noexcept {
  if (!waiting_.load()) return;
  const std::lock_guard lock(mutex_);
  notified_.notify_one();
}

}  // namespace penstock
