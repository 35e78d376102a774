/// From wires and hard macros to the share of each cell's tracks that is taken.
#pragma once

#include "penstock/floorplan/costs/routing.hpp"

namespace penstock::floorplan {

/// Tracks per um: what there is, and what hard macros take of it.
struct Routes {
  double across = 57.031, up = 56.818;
  double macro_across = 39.583, macro_up = 30.303;
};

/// Writes the sums of each line's values up to each cell, times the line's share.
inline void add_up(std::size_t lines, std::size_t places, const double* values, const double* shares, double* out) {
  constexpr std::size_t together = 8;  // lines are independent: several at once hide how long an addition takes
  for (; lines >= together; lines -= together, values += together * places, out += together * places) {
    std::array<double, together> sums{}, share{};
    std::copy_n(shares, together, share.begin());
    shares += together;
    for (std::size_t place = 0; place < places; ++place)
      for (std::size_t i = 0; i < together; ++i)
        out[i * places + place] = (sums[i] += values[i * places + place]) * share[i];
  }
  for (; lines > 0; --lines, values += places, out += places, ++shares) {
    double sum = 0;
    for (std::size_t place = 0; place < places; ++place) out[place] = (sum += values[place]) * *shares;
  }
}

/// Makes of the two parts of the demand the share of each cell's tracks that they take. That of the nets is smoothed:
/// each cell shares its own evenly with those within `range` of it, `up` along its row and `across` along its column.
class Smoothing {
 public:
  Smoothing(const Grid& grid, const Routes& routes, std::int32_t range)
      : range_(std::size_t(std::clamp(range, 0, std::max(grid.rows, grid.columns)))),
        across_(grid.rows, grid.columns, 1.0 / (grid.cell_height() * routes.across), range_),
        up_(grid.columns, grid.rows, 1.0 / (grid.cell_width() * routes.up), range_),
        buffer_(std::size_t(grid.size())),
        sums_(std::size_t(std::max(grid.rows, grid.columns))),
        none_(sums_.size()) {}

  /// Smooths all cells. `nets` are steps.
  void all(const Lines& nets, const Lines& macros, Lines& out) {
    if (out.both.size() != nets.both.size()) out = nets;
    each([&](const Direction& d, std::size_t begin) {
      const double* const steps = nets.both.data() + begin;
      std::size_t ready = 0;
      const auto demand = [&](std::size_t line) {  // made when it is needed, while it is near in memory
        if (line == ready) {
          const std::size_t count = std::min<std::size_t>(8, d.lines - ready);
          add_up(count, d.places, steps + ready * d.places, d.shares.data() + ready, buffer_.data() + ready * d.places);
          ready += count;
        }
        return buffer_.data() + line * d.places;
      };
      const double* const own = macros.both.data() + begin;
      double* const to = out.both.data() + begin;
      along(d, demand, [&](std::size_t line, std::size_t place, double sum) {
        to[line * d.places + place] = sum + own[line * d.places + place] * d.of_tracks;
      });
    });
  }

  /// Returns the cost that one more track of a hard macro adds to its cell, horizontally and vertically.
  [[nodiscard]] std::array<double, 2> of_tracks() const { return {across_.of_tracks, up_.of_tracks}; }

  /// The adjoint of `all`: of cells whose sum is inspected (`of_tracks` there, 0 elsewhere), how much
  /// that sum grows by a wire from the beginning of a line to each of its cells.
  void by_wires(const Lines& looked_at, Lines& out) {
    out = looked_at;
    each([&](const Direction& d, std::size_t begin) {
      const auto values = [&](std::size_t line) { return looked_at.both.data() + begin + line * d.places; };
      double* const crossed = buffer_.data();
      along(d, values, [&](std::size_t line, std::size_t place, double sum) {
        // A wire to a cell crosses those before it.
        crossed[line * d.places + (place + 1 < d.places ? place + 1 : 0)] = place + 1 < d.places ? sum : 0.0;
      });
      add_up(d.lines, d.places, buffer_.data(), d.parts.data(), out.both.data() + begin);
    });
  }

 private:
  /// Lines of cells, along which wires run and next to which demand is shared.
  struct Direction {
    std::size_t lines, places;
    double of_tracks;                   ///< share of a cell's tracks that one is
    std::vector<double> parts, shares;  ///< for each line: 1 / lines that it shares with; the same for tracks

    Direction(std::int32_t count, std::int32_t length, double share, std::size_t range)
        : lines(std::size_t(count)), places(std::size_t(length)), of_tracks(share) {
      for (std::size_t line = 0; line < lines; ++line) {
        const auto sharing = double(std::min(lines - 1, line + range) - (line - std::min(line, range)) + 1);
        parts.push_back(1.0 / sharing), shares.push_back(share / sharing);
      }
    }
  };

  std::size_t range_;
  Direction across_, up_;
  std::vector<double> buffer_, sums_, none_;

  template <class One>
  void each(One&& one) {
    one(across_, std::size_t(0));
    one(up_, buffer_.size());
  }
  /// Calls put(line, place, sum over the lines within range of it). `values` is asked for one line after the other.
  template <class Values, class Put>
  void along(const Direction& d, Values&& values, Put&& put) {
    double* const sums = sums_.data();
    const double* const none = none_.data();
    std::fill_n(sums, d.places, 0.0);
    for (std::size_t line = 0; line < std::min(range_, d.lines); ++line) {
      const double* const more = values(line);
      for (std::size_t place = 0; place < d.places; ++place) sums[place] += more[place];
    }
    for (std::size_t line = 0; line < d.lines; ++line) {
      const double* const more = line + range_ < d.lines ? values(line + range_) : none;
      const double* const less = line > range_ ? values(line - range_ - 1) : none;
      for (std::size_t place = 0; place < d.places; ++place) {
        // Without smoothing exactly what there is, where adding and taking away would round.
        const double sum = range_ == 0 ? more[place] : sums[place] + more[place] - less[place];
        sums[place] = sum;
        put(line, place, sum);
      }
    }
  }
};

}  // namespace penstock::floorplan
