/// Simulated annealing of the hard macros, with the published moves.
#pragma once

#include "penstock/floorplan/search/descent.hpp"

namespace penstock::floorplan {

struct AnnealSettings {
  std::int64_t moves = 1'000'000;                             ///< legal ones, each judged by its cost
  double first_temperature = 0.005, last_temperature = 1e-6;  ///< geometric between them
  std::int64_t soft_every = 0;  ///< moves between force-directed placements of the soft macros; 0: at the end alone
  std::int64_t points = 100;    ///< number of points of the curve
  std::uint64_t seed = 0;
  double swap = 0.24, shift = 0.24, flip = 0.04, move = 0.24, shuffle = 0.24;  ///< chances
  CostWeights weights;
};

struct AnnealPoint {
  std::int64_t moves;
  double temperature, cost, best;
};

struct Annealed {
  std::vector<AnnealPoint> curve;
  std::int64_t proposed = 0, judged = 0, accepted = 0;
  double cost = 0;  ///< cost of the layout that it leaves: the best one, its soft macros placed anew
};

class Annealer {
 public:
  Annealer(Layout& layout, const Setting& setting, const Rules& rules, const AnnealSettings& settings)
      : layout_(layout),
        setting_(setting),
        settings_(settings),
        moves_(layout, setting, rules, settings.weights),
        rng_(settings.seed),
        best_(layout) {
    double sum = 0;
    for (const double chance : {settings.swap, settings.shift, settings.flip, settings.move, settings.shuffle})
      until_.push_back(sum += chance);
  }

  /// `interrupted(judged)` is asked now and then; where it says so, the best layout so far is the result.
  template <class Interrupted>
  Annealed run(Interrupted&& interrupted) {
    Annealed out;
    cost_ = best_cost_ = moves_.cost();
    const std::int64_t between =
        std::max<std::int64_t>(1, settings_.moves / std::max<std::int64_t>(1, settings_.points));
    // A block so full that nothing legal is found in so many trials has no moves.
    const std::int64_t most_trials = 10'000;
    for (std::int64_t trials = 0; !moves_.movable().empty() && out.judged < settings_.moves && trials < most_trials;) {
      if (out.judged % between == 0 && trials == 0)
        out.curve.push_back({out.judged, temperature(out.judged), cost_, best_cost_});
      ++out.proposed, ++trials;
      propose();
      if (changes_.empty() || !moves_.legal(changes_)) continue;
      trials = 0;
      const double now = temperature(out.judged++);
      moves_.make(changes_);
      // Metropolis's rule, with its chance drawn first: then most moves are refused by what they cost at least.
      const double most = cost_ - now * std::log(rng_.random());
      const double found = moves_.least_cost() > most ? most + 1.0 : moves_.cost();
      if (found <= most) {
        ++out.accepted;
        cost_ = found;
        if (out.accepted % keep_every == 1) moves_.keep();
        if (cost_ < best_cost_) best_cost_ = cost_, best_.take(layout_);
      } else {
        moves_.undo();
      }
      if (out.judged % 65536 == 0) moves_.rebuild(), cost_ = moves_.cost();  // kept sums drift in their last digits
      if (settings_.soft_every > 0 && out.judged % settings_.soft_every == 0) cost_ = place_soft();
      if (out.judged % 1024 == 0 && interrupted(out.judged)) break;
    }
    finish(out);
    return out;
  }

 private:
  static constexpr std::int64_t keep_every = 8;  ///< the worst cells change slowly, and finding them takes time

  Layout& layout_;
  const Setting& setting_;
  const AnnealSettings& settings_;
  MacroMoves moves_;
  Rng rng_;
  Remembered best_;
  double cost_ = 0, best_cost_ = 0;
  std::vector<double> until_;
  std::vector<MacroChange> changes_;
  std::vector<std::int32_t> chosen_;

  [[nodiscard]] double temperature(std::int64_t judged) const {
    const double done = double(judged) / double(settings_.moves);
    return settings_.first_temperature * std::pow(settings_.last_temperature / settings_.first_temperature, done);
  }
  double place_soft() {
    Forces(layout_, setting_.grid, default_schedule(setting_.grid)).run();
    moves_.rebuild();
    const double cost = moves_.cost();
    if (cost < best_cost_) best_cost_ = cost, best_.take(layout_);
    return cost;
  }
  /// Leaves the best layout as it is, or with its soft macros placed anew where that is better.
  void finish(Annealed& out) {
    best_.put_back(layout_);
    moves_.rebuild();
    const double as_it_is = moves_.cost();
    const Remembered best = best_;
    best_cost_ = as_it_is;
    out.cost = place_soft();
    if (out.cost > as_it_is) {
      best.put_back(layout_);
      out.cost = as_it_is;
    }
    out.curve.push_back({out.judged, settings_.last_temperature, out.cost, out.cost});
  }

  /// Different movable macros; fewer where there are not so many.
  void choose(std::size_t count) {
    chosen_.clear();
    count = std::min(count, moves_.movable().size());
    while (chosen_.size() < count) {
      const auto macro = moves_.movable()[std::size_t(rng_.integers(0, std::int64_t(moves_.movable().size())))];
      if (std::ranges::find(chosen_, macro) == chosen_.end()) chosen_.push_back(macro);
    }
  }
  void add(std::int32_t macro, Point centre) {
    changes_.push_back({macro, centre, layout_.orientation[std::size_t(macro)]});
  }
  /// Fills changes_; leaves it empty where the move would change nothing.
  void propose() {
    changes_.clear();
    const double drawn = rng_.random() * until_.back();
    const auto kind =
        std::size_t(std::ranges::find_if(until_, [&](double end) { return drawn < end; }) - until_.begin());
    const Grid& grid = setting_.grid;
    if (kind == 0 || kind >= 4) {
      choose(kind == 0 ? 2 : 4);
      if (chosen_.size() < 2) return;
      std::vector<std::int32_t>& places = order_;
      places = chosen_;
      if (kind == 0) std::swap(places[0], places[1]);
      else floorplan::shuffle(places, rng_);
      for (std::size_t i = 0; i < chosen_.size(); ++i)
        if (chosen_[i] != places[i]) add(chosen_[i], layout_.position(places[i]));
      return;
    }
    choose(1);
    const std::int32_t macro = chosen_[0];
    if (kind == 2) {
      // Mirrored in x or in y: within a group, bit 0 of the orientation is the one and both bits the other.
      const auto turned = static_cast<std::uint8_t>(layout_.orientation[std::size_t(macro)]);
      const auto to = static_cast<Orientation>(turned ^ (rng_.random() < 0.5 ? 1 : 3));
      changes_.push_back({macro, layout_.position(macro), to});
      return;
    }
    if (kind == 3) return add(macro, grid.centre_of(std::int32_t(rng_.integers(0, grid.size()))));
    const std::int32_t cell = grid.cell_of(layout_.position(macro));
    if (cell < 0) return;
    constexpr std::array<std::array<std::int32_t, 2>, 4> steps{{{1, 0}, {-1, 0}, {0, 1}, {0, -1}}};
    const auto [across, up] = steps[std::size_t(rng_.integers(0, 4))];
    const std::int32_t column = cell % grid.columns + across, row = cell / grid.columns + up;
    if (column < 0 || column >= grid.columns || row < 0 || row >= grid.rows) return;
    add(macro, grid.centre_of(row * grid.columns + column));
  }
  std::vector<std::int32_t> order_;
};

}  // namespace penstock::floorplan
