/// Macro placement as an environment of the pool. The blocks in a folder that penstock.native.floorplan prepared set
/// the sizes.
#pragma once

#include <filesystem>

#include "penstock/env.hpp"
#include "penstock/floorplan/env/episode.hpp"

namespace penstock::floorplan {

/// The blocks of a pool, on grids of the same size: `<folder>/0`, `<folder>/1` and so on.
class Blocks {
 public:
  explicit Blocks(const std::string& folder) {
    for (std::size_t i = 0; i == 0 || std::filesystem::exists(folder + "/" + std::to_string(i)); ++i)
      blocks_.emplace_back(folder + "/" + std::to_string(i));
    for (const Block& block : blocks_) {
      const Grid& own = block.start.setting.grid;
      if (own.columns != grid().columns || own.rows != grid().rows)
        throw std::invalid_argument("blocks of one pool have different grids: prepare the folder with penstock.native.floorplan");
      macros_ = std::max(macros_, block.order.size());
    }
  }

  [[nodiscard]] const std::vector<Block>& all() const { return blocks_; }
  [[nodiscard]] const Grid& grid() const { return blocks_.front().start.setting.grid; }
  /// Sizes of the largest block.
  [[nodiscard]] std::size_t macros() const { return macros_; }
  /// Numbers behind the mask: the block, how many macros are placed (low and high byte), and two of each macro.
  [[nodiscard]] std::size_t seen() const { return 3 + 2 * macros_; }

  void describe(Description& d) const {
    const auto cells = std::size_t(grid().size());
    d.action_count = std::int64_t(cells);
    d.masks_actions = true;
    d.behind_mask = {std::int64_t(seen())};
    d.observation_shape = {std::int64_t(cells + seen())};
    d.observation_low.assign(cells + seen(), 0.0);
    d.observation_high.assign(cells, 1.0);
    d.observation_high.resize(cells + seen(), 255.0);
    d.facts = {{"grid", {2}, {double(grid().columns), double(grid().rows)}}, {"nodes", {}, {}}, {"edges", {}, {}}};
    for (std::size_t i = 0; i < blocks_.size(); ++i) add_graph(i, d.facts[1].values, d.facts[2].values);
    d.facts[1].shape = {std::int64_t(d.facts[1].values.size() / 6), 6};
    d.facts[2].shape = {std::int64_t(d.facts[2].values.size() / 4), 4};
  }

 private:
  std::vector<Block> blocks_;
  std::size_t macros_ = 0;

  /// Nodes: block, kind (0 placed by the agent, in its order; 1 soft; 2 fixed: macros, and groups of ports), width,
  /// height and centre, over the canvas's. Edges: block, the two nodes, counted within it, and their weight.
  void add_graph(std::size_t number, std::vector<double>& nodes, std::vector<double>& edges) const {
    const Block& block = blocks_[number];
    const Layout& layout = block.start.layout;
    const std::vector<std::int32_t>& macros = layout.netlist().macros;
    const Adjacency ties = adjacency(layout, &block.start.setting.grid);
    std::vector<std::size_t> row_of(layout.netlist().nodes.size()), rows;  // rows of the adjacency, in the order of nodes
    for (std::size_t i = 0; i < macros.size(); ++i) row_of[std::size_t(macros[i])] = i;
    std::vector<bool> ordered(ties.size);
    for (const std::int32_t macro : block.order) {
      rows.push_back(row_of[std::size_t(macro)]);
      ordered[rows.back()] = true;
    }
    for (std::size_t row = 0; row < ties.size; ++row)
      if (!ordered[row]) rows.push_back(row);
    const Grid& own = block.start.setting.grid;
    for (const std::size_t row : rows) {
      double kind = 2, width = 0, height = 0, x = 0.5, y = 0.5;
      if (row < macros.size()) {
        const auto macro = std::size_t(macros[row]);
        kind = ordered[row] ? 0 : layout.placed[macro] ? 2 : 1;
        width = layout.width[macro] / own.width, height = layout.height[macro] / own.height;
        if (kind == 2) x = layout.x[macro] / own.width, y = layout.y[macro] / own.height;
      } else {
        const std::int32_t cell = ties.port_cells[row - macros.size()];
        const Point centre = own.centre_of(cell);
        x = centre.x / own.width, y = centre.y / own.height;
      }
      nodes.insert(nodes.end(), {double(number), kind, width, height, x, y});
    }
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t j = i + 1; j < rows.size(); ++j)
        if (const double weight = ties.weights[rows[i] * ties.size + rows[j]]; weight > 0)
          edges.insert(edges.end(), {double(number), double(i), double(j), weight});
  }
};

/// Places the hard macros of a block, one a step, on the cells of its grid. The action is a cell; the mask says where
/// the macro may go, and another cell is refused with an error. The observation behind the mask, a byte each: the
/// block; the next macro (low and high byte of its place in the order); then column and row of each macro in that
/// order, 255 while it is not placed.
struct Placing {
  static constexpr Info info{.id = "Floorplan-v0"};
  static constexpr auto action = Discrete<254 * 254>{};
  static constexpr auto observation = BoxOf<std::uint8_t, 1>::filled(0, 255);

  using Shared = Blocks;
  struct Config {
    double wirelength_weight = 1.0, density_weight = 1.0, congestion_weight = 0.5;
    std::int64_t block = 0;
    PENSTOCK_FIELDS(Config, wirelength_weight, density_weight, congestion_weight, block)
    [[nodiscard]] const char* problem() const {
      if (wirelength_weight < 0 || density_weight < 0 || congestion_weight < 0) return "the weights must be at least 0";
      return block < 0 ? "block must be at least 0" : nullptr;
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

  explicit Placing(const Shared& blocks) : blocks_(&blocks), episode_(blocks.all().front()) {}

  void reset(Rng&) {
    take_block();
    episode_.clear();
    report = {.length = episode_.length()};
  }

  Step step(std::int64_t cell) {
    const auto mask = episode_.mask();
    if (std::size_t(cell) >= mask.size() || !mask[std::size_t(cell)])
      throw std::invalid_argument("macro " + std::to_string(episode_.placed()) + " may not be placed on cell " +
                                  std::to_string(cell) + ": the mask says which cells are allowed");
    episode_.place(static_cast<std::int32_t>(cell));
    report.length = episode_.length();
    if (episode_.stuck()) return {.reward = stuck_reward, .terminated = true};
    if (!episode_.done()) return {};
    const Costs costs = episode_.finish();
    const auto part = [](double weight, double cost, double& shown) {
      return weight == 0 ? 0.0 : weight * (shown = cost);
    };
    return {.reward = -(part(config.wirelength_weight, costs.wirelength, report.wirelength) +
                        part(config.density_weight, costs.density, report.density) +
                        part(config.congestion_weight, costs.congestion, report.congestion)),
            .terminated = true};
  }

  [[nodiscard]] std::size_t row_size() const { return std::size_t(blocks_->grid().size()) + blocks_->seen(); }
  void observe(std::span<std::uint8_t> out) const {
    const auto mask = episode_.mask();
    std::ranges::copy(mask, out.begin());
    const auto seen = out.subspan(mask.size());
    std::ranges::fill(seen, std::uint8_t{255});
    seen[0] = std::uint8_t(taken_), seen[1] = std::uint8_t(episode_.placed() & 255);
    seen[2] = std::uint8_t(episode_.placed() >> 8);
    for (std::size_t i = 0; i < episode_.placed(); ++i) {
      seen[3 + 2 * i] = std::uint8_t(episode_.cells()[i] % blocks_->grid().columns);
      seen[4 + 2 * i] = std::uint8_t(episode_.cells()[i] / blocks_->grid().columns);
    }
  }

  /// Holds the number of placed macros and their cells; the rest of the state follows from them.
  [[nodiscard]] std::size_t state_size() const { return 1 + blocks_->macros(); }
  void save(std::span<double> out) const {
    std::ranges::fill(out, -1.0);
    out[0] = double(episode_.placed());
    std::ranges::copy(episode_.cells(), out.begin() + 1);
  }
  void load(std::span<const double> in) {
    take_block();
    if (!(in[0] >= 0 && in[0] <= double(blocks_->all()[taken_].order.size())))
      throw std::invalid_argument("it places more macros than there are");
    episode_.clear();
    for (std::size_t i = 0; i < std::size_t(in[0]); ++i) {
      const double cell = in[1 + i];
      if (!(cell >= 0 && cell < double(blocks_->grid().size())) || !episode_.mask()[std::size_t(cell)])
        throw std::invalid_argument("it has a macro where none may be");
      episode_.place(static_cast<std::int32_t>(cell));
    }
  }

 private:
  const Shared* blocks_;
  std::size_t taken_ = 0;
  Episode episode_;

  /// Takes the block that the configuration names, which may have changed since.
  void take_block() {
    const auto wanted = std::size_t(config.block), count = blocks_->all().size();
    if (wanted >= count)
      throw std::invalid_argument("block is " + std::to_string(wanted) + ", but there are " + std::to_string(count));
    if (wanted == taken_) return;
    taken_ = wanted;
    episode_ = Episode(blocks_->all()[taken_]);
  }
};

}  // namespace penstock::floorplan
