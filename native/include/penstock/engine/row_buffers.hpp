/// Row buffers for the results of steps, and copying between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "penstock/engine/any_pool.hpp"

namespace penstock {

/// Bytes per row of each of a step's buffers.
struct RowBytes {
  explicit RowBytes(const Description& description) {
    std::size_t value = 1;
    switch (description.observation_type) {
      case ValueType::float32: value = sizeof(float); break;
      case ValueType::float64: value = sizeof(double); break;
      case ValueType::uint8: break;
    }
    observation = value;
    for (const std::int64_t extent : description.observation_shape) observation *= static_cast<std::size_t>(extent);
    reward = sizeof(double) * std::max<std::size_t>(description.agents, 1);
    report = sizeof(double) * description.report_size();
    action = description.action_count > 0 ? sizeof(std::int64_t) : sizeof(float);
    for (const std::int64_t extent : description.action_shape) action *= static_cast<std::size_t>(extent);
  }
  std::size_t observation, reward, report, action;
};

/// Copies the rows `rows` of `from` after each other. Those of eight bytes, a choice, need no call.
template <class Rows>
inline void gather_rows(const std::byte* from, const Rows& rows, std::byte* to, std::size_t width) noexcept {
  if (width == sizeof(std::int64_t)) {
    for (const auto row : rows) {
      std::memcpy(to, from + static_cast<std::size_t>(row) * sizeof(std::int64_t), sizeof(std::int64_t));
      to += sizeof(std::int64_t);
    }
    return;
  }
  for (const auto row : rows) {
    std::memcpy(to, from + static_cast<std::size_t>(row) * width, width);
    to += width;
  }
}

/// Copies rows that follow each other to the rows `rows` of `to`; as `gather_rows`.
template <class Rows>
inline void scatter_rows(const std::byte* from, const Rows& rows, std::byte* to, std::size_t width) noexcept {
  if (width == sizeof(std::int64_t)) {
    for (const auto row : rows) {
      std::memcpy(to + static_cast<std::size_t>(row) * sizeof(std::int64_t), from, sizeof(std::int64_t));
      from += sizeof(std::int64_t);
    }
    return;
  }
  for (const auto row : rows) {
    std::memcpy(to + static_cast<std::size_t>(row) * width, from, width);
    from += width;
  }
}

/// Buffers for a step's extras: what is written in addition to the arrays that the caller receives.
class StepExtras {
 public:
  StepExtras(const RowBytes& bytes, std::size_t rows, Autoreset autoreset)
      : fresh_(new bool[rows]()), episode_return_(rows), report_(rows * bytes.report / sizeof(double)),
        episode_length_(rows) {
    if (autoreset != Autoreset::same_step) return;
    final_observation_.resize(rows * bytes.observation);
    final_report_.resize(report_.size());
  }

  /// Completes the buffers of a step with these.
  void put(StepBuffers& out) noexcept {
    out.fresh = fresh_.get();
    out.episode_return = episode_return_.data();
    out.episode_length = episode_length_.data();
    out.final_observation = final_observation_.data();
    out.report = report_.data();
    out.final_report = final_report_.data();
  }

 private:
  std::unique_ptr<bool[]> fresh_;
  std::vector<double> episode_return_, report_, final_report_;
  std::vector<std::int64_t> episode_length_;
  std::vector<std::byte> final_observation_;
};

/// A thread's staging rows: it steps into them and copies them into a batch when they are finished.
class RowStaging {
 public:
  RowStaging(const RowBytes& bytes, std::size_t rows, Autoreset autoreset)
      : actions_(rows * bytes.action), observation_(rows * bytes.observation), reward_(rows * bytes.reward / sizeof(double)),
        flags_(new bool[2 * rows]), extras_(bytes, rows, autoreset) {
    out_ = {.observation = observation_.data(), .reward = reward_.data(), .terminated = flags_.get(),
            .truncated = flags_.get() + rows};
    extras_.put(out_);
  }
  [[nodiscard]] const StepBuffers& out() const noexcept { return out_; }
  [[nodiscard]] std::byte* actions() noexcept { return actions_.data(); }

 private:
  std::vector<std::byte> actions_;
  std::vector<std::byte> observation_;
  std::vector<double> reward_;
  std::unique_ptr<bool[]> flags_;
  StepExtras extras_;
  StepBuffers out_;
};

/// Copies `count` rows, all that a step may have written.
inline void copy_rows(const RowBytes& bytes, const StepBuffers& from, std::size_t first, const StepBuffers& to,
                      std::size_t target, std::size_t count, Autoreset autoreset) noexcept {
  const auto copy = [&](const void* source, void* destination, std::size_t width) {
    if (width > 0)
      std::memcpy(static_cast<std::byte*>(destination) + target * width,
                  static_cast<const std::byte*>(source) + first * width, count * width);
  };
  copy(from.observation, to.observation, bytes.observation);
  copy(from.reward, to.reward, bytes.reward);
  copy(from.terminated, to.terminated, sizeof(bool));
  copy(from.truncated, to.truncated, sizeof(bool));
  copy(from.fresh, to.fresh, sizeof(bool));
  copy(from.report, to.report, bytes.report);
  bool ended = false;
  for (std::size_t row = first; row < first + count; ++row) ended |= from.terminated[row] | from.truncated[row];
  if (!ended) return;
  copy(from.episode_return, to.episode_return, sizeof(double));
  copy(from.episode_length, to.episode_length, sizeof(std::int64_t));
  if (autoreset != Autoreset::same_step) return;
  copy(from.final_observation, to.final_observation, bytes.observation);
  copy(from.final_report, to.final_report, bytes.report);
}

}  // namespace penstock
