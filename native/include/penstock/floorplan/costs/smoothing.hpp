/// From wires and hard macros to the share of each cell's tracks that is taken.
#pragma once

#include <cstring>
#include <numeric>

#include "penstock/floorplan/costs/routing.hpp"

namespace penstock::floorplan {

/// Tracks per um: what there is, and what hard macros take of it.
struct Routes {
  double across = 57.031, up = 56.818;
  double macro_across = 39.583, macro_up = 30.303;
};

/// Writes the sums of some lines' values up to each cell, times the line's share.
inline void add_up(std::span<const std::size_t> lines, std::size_t places, const double* values, const double* shares,
                   double* out) {
  constexpr std::size_t together = 8;  // lines are independent: several at once hide how long an addition takes
  for (std::size_t first = 0; first < lines.size(); first += together) {
    std::array<double, together> sums{}, share{};
    std::array<std::size_t, together> at{};
    for (std::size_t i = 0; i < together; ++i) {
      const std::size_t line = lines[std::min(first + i, lines.size() - 1)];  // the last one again, to the same values
      at[i] = line * places, share[i] = shares[line];
    }
    for (std::size_t place = 0; place < places; ++place)
      for (std::size_t i = 0; i < together; ++i) out[at[i] + place] = (sums[i] += values[at[i] + place]) * share[i];
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
        demand_(2 * std::size_t(grid.size())),
        crossed_(std::size_t(grid.size())),
        none_(std::size_t(std::max(grid.rows, grid.columns))) {}

  /// Reports that the steps of a row changed; a column's number is that of the rows and its own. At first, all have.
  void changed(std::size_t line) {
    (line < across_.lines ? across_ : up_).changed[line < across_.lines ? line : line - across_.lines] = 1;
  }
  void all_changed() { std::ranges::fill(across_.changed, 1), std::ranges::fill(up_.changed, 1); }

  /// Smooths all cells. `nets` are steps; of lines that did not change since the last call they are not read again.
  void all(const Lines& nets, const Lines& macros, Lines& out) {
    if (out.both.size() != nets.both.size()) out = nets;
    each([&](Direction& d, std::size_t begin) {
      lines_.clear();
      for (std::size_t line = 0; line < d.lines; ++line)
        if (std::exchange(d.changed[line], std::uint8_t{0})) lines_.push_back(line);
      add_up(lines_, d.places, nets.both.data() + begin, d.shares.data(), demand_.data() + begin);
      const Window window{demand_.data() + begin,  none_.data(), macros.both.data() + begin, d.of_tracks,
                          out.both.data() + begin, d.lines,      d.places,                   range_};
      along<true>(window, d.places);
    });
  }

  /// Returns the cost that one more track of a hard macro adds to its cell, horizontally and vertically.
  [[nodiscard]] std::array<double, 2> of_tracks() const { return {across_.of_tracks, up_.of_tracks}; }

  /// The adjoint of `all`: of cells whose sum is inspected (`of_tracks` there, 0 elsewhere), how much
  /// that sum grows by a wire from the beginning of a line to each of its cells.
  void by_wires(const Lines& looked_at, Lines& out) {
    out = looked_at;
    each([&](Direction& d, std::size_t begin) {
      // A wire to a cell crosses those before it.
      const Window window{looked_at.both.data() + begin, none_.data(), nullptr, 0,
                          crossed_.data() + 1,           d.lines,      d.places, range_};
      along<false>(window, d.places - 1);
      lines_.resize(d.lines), std::iota(lines_.begin(), lines_.end(), std::size_t{0});
      for (const std::size_t line : lines_) crossed_[line * d.places] = 0.0;
      add_up(lines_, d.places, crossed_.data(), d.parts.data(), out.both.data() + begin);
    });
  }

 private:
  /// Lines of cells, along which wires run and next to which demand is shared.
  struct Direction {
    std::size_t lines, places;
    double of_tracks;                   ///< share of a cell's tracks that one is
    std::vector<double> parts, shares;  ///< for each line: 1 / lines that it shares with; the same for tracks
    std::vector<std::uint8_t> changed;

    Direction(std::int32_t count, std::int32_t length, double share, std::size_t range)
        : lines(std::size_t(count)), places(std::size_t(length)), of_tracks(share), changed(lines, 1) {
      for (std::size_t line = 0; line < lines; ++line) {
        const auto sharing = double(std::min(lines - 1, line + range) - (line - std::min(line, range)) + 1);
        parts.push_back(1.0 / sharing), shares.push_back(share / sharing);
      }
    }
  };
  /// Lines, and for each the sum over those within range of it; `stride` is from line to line.
  struct Window {
    const double *values, *none, *macros;
    double of_tracks;
    double* out;
    std::size_t lines, stride, range;
  };

  std::size_t range_;
  Direction across_, up_;
  std::vector<double> demand_, crossed_, none_;
  std::vector<std::size_t> lines_;

  template <class One>
  void each(One&& one) {
    one(across_, std::size_t(0));
    one(up_, crossed_.size());
  }
  /// Adds up the first `places` of all lines, and tracks of macros.
  template <bool with_macros>
  static void along(const Window& w, std::size_t places) {
    constexpr std::size_t together = 8;
    std::size_t place = 0;
    if (places >= together)
      for (; place < places; place += together)
        add_lines<Wide, together * sizeof(double) / sizeof(Wide), with_macros>(w, std::min(place, places - together));
    for (; place < places; ++place) add_lines<double, 1, with_macros>(w, place);
  }
  /// Adds up `count` times as many places as a T has, from one on.
  template <class T, std::size_t count, bool with_macros>
  static void add_lines(const Window& w, std::size_t place) {
    T sums[count]{}, more, less, macros;
    for (std::size_t line = 0; line < std::min(w.range, w.lines); ++line)
      for (std::size_t i = 0; i < count; ++i) {
        load(more, w.values + line * w.stride + place, i);
        sums[i] += more;
      }
    for (std::size_t line = 0; line < w.lines; ++line) {
      const double* const add = line + w.range < w.lines ? w.values + (line + w.range) * w.stride + place : w.none;
      const double* const take = line > w.range ? w.values + (line - w.range - 1) * w.stride + place : w.none;
      for (std::size_t i = 0; i < count; ++i) {
        load(more, add, i), load(less, take, i);
        // Without smoothing exactly what there is, where adding and taking away would round.
        if (w.range == 0) sums[i] = more;
        else sums[i] = sums[i] + more - less;
        T out = sums[i];
        if constexpr (with_macros) {
          load(macros, w.macros + line * w.stride + place, i);
          out += macros * w.of_tracks;
        }
        std::memcpy(w.out + line * w.stride + place + i * (sizeof(T) / sizeof(double)), &out, sizeof out);
      }
    }
  }
  template <class T>
  static void load(T& to, const double* from, std::size_t i) {
    std::memcpy(&to, from + i * (sizeof(T) / sizeof(double)), sizeof to);
  }
};

}  // namespace penstock::floorplan
