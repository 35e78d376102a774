/// Per-step extras (final observations, episode statistics) from which `infos` is built on demand.
#pragma once

#include <algorithm>
#include <cstring>

#include "bindings.hpp"
#include "penstock/engine/row_buffers.hpp"

namespace penstock {

class StepInfos {
 public:
  /// `observation` is the shape of a batch of them.
  StepInfos(const Description& description, py::ssize_t rows, Autoreset autoreset, py::dtype dtype, Shape observation)
      : bytes_(description), rows_(rows), with_final_(autoreset == Autoreset::same_step), dtype_(std::move(dtype)),
        observation_(std::move(observation)), extras_(bytes_, static_cast<std::size_t>(rows), autoreset) {
    extras_.put(mine_);
  }

  /// Completes the buffers of a step with these.
  void put(StepBuffers& out) { extras_.put(out); }

  /// [rows, reports]: of the observation's moment.
  [[nodiscard]] py::array report() const {
    py::array_t<double> out(Shape{rows_, report_width()});
    if (bytes_.report > 0) std::memcpy(out.mutable_data(), mine_.report, static_cast<std::size_t>(rows_) * bytes_.report);
    return out;
  }

  /// Returns which rows' observation is a reset's; then for `rows`, in which an episode ended: return and length, and
  /// with SAME_STEP its last observation and report.
  [[nodiscard]] py::tuple ended(const py::array& rows) const {
    const py::ssize_t count = rows.size(), final_count = with_final_ ? count : 0;
    const auto* row = readable_data<std::int64_t>(rows, {count}, "rows");
    if (std::any_of(row, row + count, [&](std::int64_t r) { return r < 0 || r >= rows_; }))
      throw py::value_error("rows are 0 to " + std::to_string(rows_ - 1));
    Shape seen = observation_;
    seen.front() = final_count;
    py::array final_observation(dtype_, seen);
    py::array_t<double> returns(count), reports(Shape{final_count, report_width()});
    py::array_t<std::int64_t> lengths(count);
    py::array_t<bool> fresh(rows_);
    std::copy_n(mine_.fresh, rows_, fresh.mutable_data());
    for (py::ssize_t i = 0; i < count; ++i) {
      returns.mutable_data()[i] = mine_.episode_return[row[i]];
      lengths.mutable_data()[i] = mine_.episode_length[row[i]];
      if (!with_final_) continue;
      const auto from = static_cast<std::size_t>(row[i]), to = static_cast<std::size_t>(i);
      copy(mine_.final_observation, from, final_observation.mutable_data(), to, bytes_.observation);
      copy(mine_.final_report, from, reports.mutable_data(), to, bytes_.report);
    }
    return py::make_tuple(fresh, returns, lengths, final_observation, reports);
  }

 private:
  static void copy(const void* from, std::size_t row, void* to, std::size_t target, std::size_t width) {
    if (width > 0)
      std::memcpy(static_cast<std::byte*>(to) + target * width, static_cast<const std::byte*>(from) + row * width, width);
  }
  [[nodiscard]] py::ssize_t report_width() const { return static_cast<py::ssize_t>(bytes_.report / sizeof(double)); }

  RowBytes bytes_;
  py::ssize_t rows_;
  bool with_final_;
  py::dtype dtype_;
  Shape observation_;
  StepExtras extras_;
  StepBuffers mine_{};
};

/// The steps whose `infos` is not empty.
enum class InfoLevel { never, ends, always };

inline InfoLevel info_level_of(const Description& description, Autoreset autoreset, bool statistics) {
  if (!description.reports.empty()) return InfoLevel::always;
  return statistics || autoreset == Autoreset::same_step ? InfoLevel::ends : InfoLevel::never;
}

}  // namespace penstock
