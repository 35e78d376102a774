/// Simulated annealing of macros.
#pragma once

#include "penstock/floorplan/search/descent.hpp"

namespace penstock::floorplan {

struct AnnealSettings {
  std::int64_t moves = 1'000'000;                             ///< legal ones, each judged by its cost
  double first_temperature = 0.005, last_temperature = 1e-6;  ///< geometric between them
  std::int64_t soft_every = 0;  ///< moves between force-directed placements of the soft macros; 0: at the end alone
  std::int64_t points = 100;    ///< number of points of the curve
  std::uint64_t seed = 0;
  ProposalSettings proposals;
  bool leave_last = false;  ///< the layout left is the last one: that of an annealing which others continue
  CostWeights weights;
};

struct AnnealPoint {
  std::int64_t moves;
  double temperature, cost, best;
};

struct Annealed {
  std::vector<AnnealPoint> curve;
  std::int64_t proposed = 0, judged = 0, accepted = 0;
  double cost = 0;  ///< cost of the layout that it leaves
};

class Annealer {
 public:
  Annealer(Layout& layout, const Setting& setting, const Rules& rules, const AnnealSettings& settings)
      : layout_(layout),
        setting_(setting),
        settings_(settings),
        moves_(layout, setting, rules, settings.weights),
        rng_(settings.seed),
        proposer_(layout, setting, moves_, settings.proposals, settings.weights.wirelength, rng_),
        best_(layout) {}

  /// `interrupted(judged)` is asked now and then; where it says so, the best layout so far is the result.
  template <class Interrupted>
  Annealed run(Interrupted&& interrupted) {
    Annealed out;
    cost_ = best_cost_ = moves_.cost();
    const std::int64_t between =
        std::max<std::int64_t>(1, settings_.moves / std::max<std::int64_t>(1, settings_.points));
    // A block so full that nothing legal is found in so many trials has no moves.
    const std::int64_t most_trials = 10'000;
    for (std::int64_t trials = 0; proposer_.any() && out.judged < settings_.moves && trials < most_trials;) {
      if (out.judged % between == 0 && trials == 0)
        out.curve.push_back({out.judged, temperature(out.judged), cost_, best_cost_});
      ++out.proposed, ++trials;
      const double now = temperature(out.judged);
      const std::span<const MacroChange> changes = proposer_.propose(now);
      if (changes.empty() || !moves_.legal(changes)) continue;
      trials = 0, ++out.judged;
      moves_.make(changes);
      // Metropolis's rule, with its chance drawn first: then most moves are refused by what they cost at least.
      const double most = cost_ - now * std::log(rng_.random());
      const double found = moves_.least_cost(most) > most ? most + 1.0 : moves_.cost();
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
  Proposer proposer_;
  Remembered best_;
  double cost_ = 0, best_cost_ = 0;

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
  /// Leaves the best layout as it is; or, where soft macros were not annealed, with them placed anew if that is better.
  void finish(Annealed& out) {
    if (settings_.leave_last) {
      moves_.rebuild();
      out.cost = moves_.cost();
      out.curve.push_back({out.judged, settings_.last_temperature, out.cost, best_cost_});
      return;
    }
    best_.put_back(layout_);
    moves_.rebuild();
    const double as_it_is = moves_.cost();
    const Remembered best = best_;
    best_cost_ = out.cost = as_it_is;
    if (!settings_.proposals.soft()) {
      out.cost = place_soft();
      if (out.cost > as_it_is) best.put_back(layout_), out.cost = as_it_is;
    }
    out.curve.push_back({out.judged, settings_.last_temperature, out.cost, out.cost});
  }
};

}  // namespace penstock::floorplan
