/// Chooses the number of threads for a job from the measured cost of the latest ones. It affects time, never
/// results.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "penstock/threads/spin_wait.hpp"
#include "penstock/threads/system.hpp"

namespace penstock {

class TeamSizer {
 public:
  explicit TeamSizer(int size) : size_(static_cast<std::size_t>(size)), spins_(static_cast<std::size_t>(size) <= cpus()) {}

  /// Returns whether threads spin while they wait: not where there are more of them than CPUs.
  [[nodiscard]] bool spins() const noexcept { return spins_; }
  /// Returns the number of members for the next job, the caller included.
  [[nodiscard]] std::size_t team() const noexcept { return team_; }
  /// A job takes microseconds: too short to be interrupted, or to let go of an interpreter for.
  [[nodiscard]] bool is_brief() const noexcept { return job_nanoseconds_ < brief_nanoseconds; }

  void begin() noexcept {
    measures_ = jobs_ < warm_up || jobs_ % every == 0;
    if (!measures_ && is_brief()) return;
    begin_ = polled_ = nanoseconds_now();
    own_end_ = 0;
    if (end_ != 0) gap_nanoseconds_ = smoothed(gap_nanoseconds_, begin_ - end_);
  }
  void end_of_own_blocks() noexcept {
    if (measures_) own_end_ = nanoseconds_now();
  }
  /// After a job of `blocks` of which the caller did `done_here`.
  void end(std::size_t done_here, std::size_t blocks) noexcept {
    ++jobs_;
    const bool next_measures = jobs_ < warm_up || jobs_ % every == 0;
    if (measures_ && done_here > 0) {
      const std::int64_t until = own_end_ != 0 ? own_end_ : nanoseconds_now();
      work_nanoseconds_ = smoothed(work_nanoseconds_, (until - begin_) * static_cast<std::int64_t>(blocks) /
                                                          static_cast<std::int64_t>(done_here));
      if (team_ > 1) shared_nanoseconds_ = smoothed(shared_nanoseconds_, nanoseconds_now() - begin_);
      decide();
      job_nanoseconds_ = work_nanoseconds_ / static_cast<std::int64_t>(team_);
    }
    end_ = next_measures ? nanoseconds_now() : 0;
  }

  [[nodiscard]] bool poll_is_due() noexcept {
    const std::int64_t now = nanoseconds_now();
    if (now - polled_ < poll_nanoseconds) return false;
    polled_ = now;
    return true;
  }

 private:
  static constexpr std::uint64_t warm_up = 8, every = 32;
  static constexpr std::int64_t unknown = -1;
  /// The time that a further thread must save: less if it still spins when it is called, more if it must be woken.
  static constexpr std::int64_t worth_awake_nanoseconds = 3'000, worth_asleep_nanoseconds = 60'000;
  static constexpr std::int64_t brief_nanoseconds = 30'000, poll_nanoseconds = 100'000'000;

  static std::size_t cpus() { return std::max<std::size_t>(usable_cpus().size(), 1); }

  /// Down at once, up slowly: what takes longer is mostly another process that had the CPU.
  static std::int64_t smoothed(std::int64_t before, std::int64_t sample) noexcept {
    if (before == unknown || sample < before) return sample;
    return before + (sample - before) / 8;
  }

  void decide() noexcept {
    if (team_ > 1 && shared_nanoseconds_ > work_nanoseconds_ * 9 / 10) {
      // The others do not help: another process has their CPUs. Try again later.
      alone_until_ = jobs_ + 16 * every;
      shared_nanoseconds_ = unknown;
    }
    if (jobs_ < alone_until_) {
      team_ = 1;
      return;
    }
    const bool awake = spins_ && gap_nanoseconds_ != unknown && gap_nanoseconds_ < spin_nanoseconds / 2;
    const std::int64_t worth = awake ? worth_awake_nanoseconds : worth_asleep_nanoseconds;
    // Hysteresis of a fourth: a team that changes loses its caches.
    const auto stays = static_cast<std::size_t>(1 + work_nanoseconds_ * 4 / (worth * 3));
    const auto joins = static_cast<std::size_t>(1 + work_nanoseconds_ / worth);
    team_ = std::min(size_, std::clamp(team_, joins, std::max(joins, stays)));
  }

  const std::size_t size_;
  const bool spins_;
  std::size_t team_ = 1;
  std::uint64_t jobs_ = 0;
  bool measures_ = false;
  std::int64_t begin_ = 0, own_end_ = 0, end_ = 0, polled_ = 0;
  std::uint64_t alone_until_ = 0;
  std::int64_t work_nanoseconds_ = unknown, gap_nanoseconds_ = unknown, shared_nanoseconds_ = unknown;
  std::int64_t job_nanoseconds_ = brief_nanoseconds;  ///< unknown counts as long
};

}  // namespace penstock
