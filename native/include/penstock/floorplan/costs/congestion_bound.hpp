/// A number that congestion is not below, found without routing.
#pragma once

#include "penstock/floorplan/costs/congestion.hpp"

namespace penstock::floorplan {

/// The mean of any cells is no more than that of as many of the worst. So the mean of those that were worst lately is a
/// bound; and as it is a sum of all demand, each part weighed, what a change adds to it needs a few look-ups a wire.
class CongestionBound {
 public:
  CongestionBound(const Grid& grid, const Routes& routes) : grid_(grid), routes_(routes), by_macros_(grid) {}

  /// Takes the worst of the cells; `least` is the least of those.
  void take(const Lines& congestion, double least, Smoothing& smoothing) {
    const auto count = std::size_t(worst_count(congestion));
    const auto [across, up] = smoothing.of_tracks();
    for (const std::size_t index : worst_) by_macros_.both[index] = 0;
    worst_.clear();
    const auto collect = [&](auto&& wanted) {
      for (std::size_t i = 0; i < congestion.both.size() && worst_.size() < count; ++i)
        if (wanted(congestion.both[i])) worst_.push_back(i);
    };
    collect([&](double value) { return value > least; });
    collect([&](double value) { return value == least; });
    sum_ = change_ = magnitude_ = 0;
    for (const std::size_t index : worst_) {
      sum_ += congestion.both[index];
      by_macros_.both[index] = index < congestion.both.size() / 2 ? across : up;
    }
    smoothing.by_wires(by_macros_, by_wires_);
    ++taken_;
  }
  /// Counts up: of what is worked out, only what is of the same number goes together.
  [[nodiscard]] std::uint32_t taken() const { return taken_; }

  /// Returns a net's unweighted share of the sum.
  [[nodiscard]] double of_net(std::span<const Cell> cells) const {
    Weighed wires{by_wires_};
    route(cells, wires);
    return wires.sum;
  }
  [[nodiscard]] double of_macro(const Box& box) const {
    double sum = 0;
    for_each_macro_track(box, grid_, routes_, by_macros_,
                         [&](std::size_t index, double tracks) { sum += by_macros_.both[index] * tracks; });
    return sum;
  }

  /// Begins to report a change of the layout that was accepted.
  void begin() { change_ = 0, magnitude_ = sum_; }
  void add(double more) { change_ += more, magnitude_ += std::abs(more); }
  /// Returns a lower bound of the congestion after the change, less the rounding error.
  [[nodiscard]] double least() const { return (sum_ + change_ - rounding * magnitude_) / double(worst_.size()); }
  /// Commits the change.
  void keep() { sum_ += change_; }

 private:
  struct Weighed {
    const Lines& by_wires;
    double sum = 0;

    void across(std::int32_t row, std::int32_t from, std::int32_t to) {
      sum += std::abs(by_wires.both[by_wires.across(row, from)] - by_wires.both[by_wires.across(row, to)]);
    }
    void up(std::int32_t column, std::int32_t from, std::int32_t to) {
      sum += std::abs(by_wires.both[by_wires.up(from, column)] - by_wires.both[by_wires.up(to, column)]);
    }
  };

  static constexpr double rounding = 1e-9;  ///< relative margin, far above differences by the order of a sum

  Grid grid_;
  Routes routes_;
  Lines by_macros_, by_wires_;
  std::vector<std::size_t> worst_;
  std::uint32_t taken_ = 0;
  double sum_ = 0, change_ = 0, magnitude_ = 0;
};

}  // namespace penstock::floorplan
