/// Proposals of annealing: which macros change, and where to.
#pragma once

#include "penstock/floorplan/search/macro_moves.hpp"
#include "penstock/floorplan/search/wire_map.hpp"
#include "penstock/random/numpy_random.hpp"

namespace penstock::floorplan {

/// A random order, by the generator that NumPy has too.
inline void shuffle(std::vector<std::int32_t>& values, Rng& rng) {
  for (std::size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[std::size_t(rng.integers(0, std::int64_t(i)))]);
}

/// A chance of each kind of proposal, and how strongly the guided kinds follow what a place would cost.
struct ProposalSettings {
  /// The published kinds, of hard macros: two exchange their places, a step to a next cell, a turn, a cell anywhere, four
  /// exchange their places.
  double swap = 0.24, shift = 0.24, flip = 0.04, move = 0.24, shuffle = 0.24;
  /// Soft macros: a cell at most two away, two exchange their places.
  double soft_shift = 0, soft_swap = 0;
  /// A cell for a soft macro, a cell for a hard one and a hard macro to exchange places with, drawn by their costs.
  double guided_soft = 0, guided_move = 0, guided_swap = 0;
  /// A place is drawn with a chance in proportion to exp(-strength * cost / temperature): strengths of the wirelength
  /// of a soft macro's nets and of a hard one's, and of the density that a soft macro adds.
  double soft_wire = 0, hard_wire = 0, soft_density = 0;

  /// Tells whether soft macros are moved: then forces do not place them again.
  [[nodiscard]] bool soft() const { return soft_shift + soft_swap + guided_soft > 0; }
  [[nodiscard]] std::array<double, 10> chances() const {
    return {swap, shift, flip, move, shuffle, soft_shift, soft_swap, guided_soft, guided_move, guided_swap};
  }
};

class Proposer {
 public:
  Proposer(const Layout& layout, const Setting& setting, const MacroMoves& moves, const ProposalSettings& settings,
           double wire_weight, Rng& rng)
      : layout_(layout),
        grid_(setting.grid), moves_(moves), settings_(settings), rng_(rng), map_(layout, setting.grid),
        wire_weight_(wire_weight * wirelength_cost(1.0, layout.netlist(), setting.grid)) {
    double sum = 0;
    const std::array<double, 10> chances = settings.chances();
    for (std::size_t kind = 0; kind < chances.size(); ++kind) {
      // What there is nothing to do with is not drawn.
      const bool any = is_of_soft(Kind(kind)) ? !moves.movable_soft().empty() : !moves.movable().empty();
      if (any && chances[kind] > 0) until_.push_back({sum += chances[kind], Kind(kind)});
    }
  }

  /// Tells whether there is anything to propose.
  [[nodiscard]] bool any() const { return !until_.empty(); }

  /// Returns changes that may be illegal; none where they would change nothing. Good until the next call.
  std::span<const MacroChange> propose(double temperature) {
    changes_.clear();
    const double drawn = rng_.random() * until_.back().first;
    auto chosen = std::ranges::find_if(until_, [&](const auto& one) { return drawn < one.first; });
    if (chosen == until_.end()) --chosen;  // rounding
    switch (chosen->second) {
      case Kind::swap:
        exchange(moves_.movable(), 2);
        break;
      case Kind::shuffle:
        exchange(moves_.movable(), 4);
        break;
      case Kind::soft_swap:
        exchange(moves_.movable_soft(), 2);
        break;
      case Kind::flip:
        flip(one_of(moves_.movable()));
        break;
      case Kind::move:
        anywhere(one_of(moves_.movable()));
        break;
      case Kind::shift:
        step(one_of(moves_.movable()));
        break;
      case Kind::soft_shift:
        shift_nearby(one_of(moves_.movable_soft()));
        break;
      case Kind::guided_soft:
        guided(one_of(moves_.movable_soft()), settings_.soft_wire / temperature, settings_.soft_density / temperature);
        break;
      case Kind::guided_move:
        guided(one_of(moves_.movable()), settings_.hard_wire / temperature, 0);
        break;
      case Kind::guided_swap:
        guided_swap(one_of(moves_.movable()), settings_.hard_wire / temperature);
        break;
    }
    return changes_;
  }

 private:
  enum class Kind : std::uint8_t {  // in the order of ProposalSettings::chances
    swap,
    shift,
    flip,
    move,
    shuffle,
    soft_shift,
    soft_swap,
    guided_soft,
    guided_move,
    guided_swap
  };
  static constexpr std::int32_t reach = 2, most_draws = 16;

  const Layout& layout_;
  const Grid& grid_;
  const MacroMoves& moves_;
  const ProposalSettings& settings_;
  Rng& rng_;
  WireMap map_;
  double wire_weight_;  ///< cost of a um of wirelength
  std::vector<std::pair<double, Kind>> until_;
  std::vector<MacroChange> changes_;
  std::vector<std::int32_t> chosen_, places_;
  std::vector<double> across_, up_;

  static bool is_of_soft(Kind kind) {
    return kind == Kind::soft_shift || kind == Kind::soft_swap || kind == Kind::guided_soft;
  }
  std::int32_t one_of(const std::vector<std::int32_t>& macros) {
    return macros[std::size_t(rng_.integers(0, std::int64_t(macros.size())))];
  }
  void add(std::int32_t macro, Point centre) {
    changes_.push_back({macro, centre, layout_.orientation[std::size_t(macro)]});
  }
  void anywhere(std::int32_t macro) { put(macro, std::int32_t(rng_.integers(0, grid_.size()))); }
  void put(std::int32_t macro, std::int32_t cell) { add(macro, grid_.centre_of(cell)); }

  /// Different macros, fewer where there are not so many, exchange their places.
  void exchange(const std::vector<std::int32_t>& macros, std::size_t count) {
    chosen_.clear();
    count = std::min(count, macros.size());
    while (chosen_.size() < count) {
      const std::int32_t macro = one_of(macros);
      if (std::ranges::find(chosen_, macro) == chosen_.end()) chosen_.push_back(macro);
    }
    if (count < 2) return;
    places_ = chosen_;
    if (count == 2) std::swap(places_[0], places_[1]);
    else floorplan::shuffle(places_, rng_);
    for (std::size_t i = 0; i < count; ++i)
      if (chosen_[i] != places_[i]) add(chosen_[i], layout_.position(places_[i]));
  }
  void flip(std::int32_t macro) {
    // Mirrored in x or in y: within a group, bit 0 of the orientation is the one and both bits the other.
    const auto turned = static_cast<std::uint8_t>(layout_.orientation[std::size_t(macro)]);
    const auto to = static_cast<Orientation>(turned ^ (rng_.random() < 0.5 ? 1 : 3));
    changes_.push_back({macro, layout_.position(macro), to});
  }
  void step(std::int32_t macro) {
    const std::int32_t cell = grid_.cell_of(layout_.position(macro));
    if (cell < 0) return;
    constexpr std::array<std::array<std::int32_t, 2>, 4> steps{{{1, 0}, {-1, 0}, {0, 1}, {0, -1}}};
    const auto [across, up] = steps[std::size_t(rng_.integers(0, 4))];
    put_at(macro, cell % grid_.columns + across, cell / grid_.columns + up);
  }
  void shift_nearby(std::int32_t macro) {
    const std::int32_t cell = grid_.cell_of(layout_.position(macro));
    if (cell < 0) return anywhere(macro);
    const auto across = std::int32_t(rng_.integers(-reach, reach + 1));
    const auto up = std::int32_t(rng_.integers(-reach, reach + 1));
    put_at(macro, cell % grid_.columns + across, cell / grid_.columns + up);
  }
  void put_at(std::int32_t macro, std::int32_t column, std::int32_t row) {
    if (column >= 0 && column < grid_.columns && row >= 0 && row < grid_.rows) put(macro, row * grid_.columns + column);
  }

  /// Makes of lengths the running sums of chances exp(-strength * length * cost of a um).
  void chances_of(const std::vector<double>& lengths, double strength, std::vector<double>& sums) const {
    const double least = *std::ranges::min_element(lengths);
    sums.clear();
    double sum = 0;
    for (const double length : lengths) sums.push_back(sum += std::exp(-strength * wire_weight_ * (length - least)));
  }
  std::int32_t drawn(const std::vector<double>& sums) {
    const auto found = std::ranges::upper_bound(sums, rng_.random() * sums.back());
    return std::min(std::int32_t(found - sums.begin()), std::int32_t(sums.size()) - 1);
  }
  /// Draws a cell: column and row by wirelength, of which each has its part; then it is refused by the density's chance.
  void guided(std::int32_t macro, double wire, double density) {
    map_.find(macro);
    chances_of(map_.columns(), wire, across_), chances_of(map_.rows(), wire, up_);
    const std::int32_t own = grid_.cell_of(layout_.position(macro));
    for (std::int32_t draw = 0; draw < most_draws; ++draw) {
      const std::int32_t row = drawn(up_), column = drawn(across_), cell = row * grid_.columns + column;
      if (cell == own) continue;
      if (density > 0) {
        const auto i = std::size_t(macro);
        const double more =
            moves_.density_added(box_around(grid_.centre_of(cell), layout_.width[i], layout_.height[i]));
        if (more > 0 && rng_.random() >= std::exp(-density * more)) continue;
      }
      return put(macro, cell);
    }
  }
  /// Draws a hard macro to exchange places with, by the wirelength of the first one's nets there.
  void guided_swap(std::int32_t macro, double wire) {
    map_.find(macro);
    chosen_.clear(), across_.clear();
    for (const std::int32_t other : moves_.movable()) {
      const std::int32_t cell = other == macro ? -1 : grid_.cell_of(layout_.position(other));
      if (cell < 0) continue;
      chosen_.push_back(other);
      across_.push_back(map_.columns()[std::size_t(cell % grid_.columns)] +
                        map_.rows()[std::size_t(cell / grid_.columns)]);
    }
    if (chosen_.empty()) return;
    chances_of(across_, wire, up_);
    const std::int32_t other = chosen_[std::size_t(drawn(up_))];
    add(macro, layout_.position(other)), add(other, layout_.position(macro));
  }
};

}  // namespace penstock::floorplan
