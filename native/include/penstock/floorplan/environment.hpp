/// Macro placement as an environment of the pool. Sizes are the block's, so it is compiled for one: native.floorplan
/// writes the few lines that do it.
#pragma once

#include "penstock/floorplan/episode.hpp"
#include "penstock/library.hpp"

namespace penstock::floorplan {

/// Places `Macros` hard macros, one a step, on the cells of a grid. The action is a cell; the mask says where the macro
/// may go, and another cell is refused with an error. What is observed, a byte each: which macro is next (low and high
/// byte of its place in the order), then column and row of each macro in that order, 255 while it is not placed.
template <std::int64_t Columns, std::int64_t Rows, std::size_t Macros>
struct Placing {
  static_assert(Columns < 255 && Rows < 255 && Macros < 65536);
  static constexpr auto action = Discrete<Columns * Rows>{};
  static constexpr auto observation = BoxOf<std::uint8_t, 2 + 2 * Macros>::filled(0, 255);

  using Shared = Block;
  struct Config {
    double wirelength_weight = 1.0, density_weight = 1.0, congestion_weight = 0.5;
    PENSTOCK_FIELDS(Config, wirelength_weight, density_weight, congestion_weight)
    [[nodiscard]] const char* problem() const {
      return wirelength_weight < 0 || density_weight < 0 || congestion_weight < 0 ? "the weights must be at least 0"
                                                                                  : nullptr;
    }
  } config;

  /// The costs are -1 until the episode's end, where it could not be finished, and where the weight is 0. `length` is
  /// the wirelength in um of what is placed, before the soft macros are.
  struct Report {
    double wirelength = -1, density = -1, congestion = -1, length = 0;
    PENSTOCK_FIELDS(Report, wirelength, density, congestion, length)
  } report;
  static constexpr std::size_t reset_reports = 4;
  static constexpr double stuck_reward = -4.0;

  explicit Placing(const Shared& block) : episode(block) {
    if (block.order.size() != Macros || block.start.setting.grid.columns != Columns ||
        block.start.setting.grid.rows != Rows)
      throw std::invalid_argument("the folder holds another block than this environment was compiled for");
  }

  void reset(Rng&) {
    episode.clear();
    report = {.length = episode.length()};
  }

  Step step(std::int64_t cell) {
    if (!episode.mask()[std::size_t(cell)])
      throw std::invalid_argument("macro " + std::to_string(episode.placed()) + " may not be placed on cell " +
                                  std::to_string(cell) + ": the mask says which cells are allowed");
    episode.place(static_cast<std::int32_t>(cell));
    report.length = episode.length();
    if (episode.stuck()) return {.reward = stuck_reward, .terminated = true};
    if (!episode.done()) return {};
    const Costs costs = episode.finish();
    const auto part = [](double weight, double cost, double& shown) {
      return weight == 0 ? 0.0 : weight * (shown = cost);
    };
    return {.reward = -(part(config.wirelength_weight, costs.wirelength, report.wirelength) +
                        part(config.density_weight, costs.density, report.density) +
                        part(config.congestion_weight, costs.congestion, report.congestion)),
            .terminated = true};
  }

  void action_mask(std::span<bool, Columns * Rows> out) const {
    std::ranges::transform(episode.mask(), out.begin(), [](std::uint8_t allowed) { return allowed != 0; });
  }
  void observe(std::span<std::uint8_t, 2 + 2 * Macros> out) const {
    std::ranges::fill(out, std::uint8_t{255});
    out[0] = std::uint8_t(episode.placed() & 255), out[1] = std::uint8_t(episode.placed() >> 8);
    for (std::size_t i = 0; i < episode.placed(); ++i) {
      out[2 + 2 * i] = std::uint8_t(episode.cells()[i] % Columns);
      out[3 + 2 * i] = std::uint8_t(episode.cells()[i] / Columns);
    }
  }

  /// How many macros are placed, and on which cells; the rest follows from them.
  [[nodiscard]] std::size_t state_size() const { return 1 + Macros; }
  void save(std::span<double> out) const {
    std::ranges::fill(out, -1.0);
    out[0] = double(episode.placed());
    std::ranges::copy(episode.cells(), out.begin() + 1);
  }
  void load(std::span<const double> in) {
    if (!(in[0] >= 0 && in[0] <= double(Macros))) throw std::invalid_argument("it places more macros than there are");
    episode.clear();
    for (std::size_t i = 0; i < std::size_t(in[0]); ++i) {
      const double cell = in[1 + i];
      if (!(cell >= 0 && cell < double(Columns * Rows)) || !episode.mask()[std::size_t(cell)])
        throw std::invalid_argument("it has a macro where none may be");
      episode.place(static_cast<std::int32_t>(cell));
    }
  }

 private:
  Episode episode;
};

}  // namespace penstock::floorplan
