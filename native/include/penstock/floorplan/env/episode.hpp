/// One episode of macro placement: the hard macros are put on cells one after the other, the soft ones by forces at the
/// end, and the costs are the reward.
#pragma once

#include <fstream>
#include <sstream>

#include "penstock/floorplan/evaluator.hpp"
#include "penstock/floorplan/io/netlist_reader.hpp"

namespace penstock::floorplan {

/// The data that all episodes on a block share: read once, from a folder that penstock.native.floorplan prepared.
struct Block {
  Evaluator start;                                                       ///< fixed nodes placed, all others not
  std::vector<std::int32_t> order;                                       ///< hard macros, as they are placed
  std::vector<double> density;                                           ///< at the start
  std::vector<Extent> extents;                                           ///< extent of each net, at the start
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> pins;  ///< nets and pins of each macro in order
  double length = 0;                                                     ///< weighted, at the start

  explicit Block(const std::string& folder) : start(open(folder)) {
    start.unplace_all();
    const Netlist& netlist = start.netlist();
    for (const std::int32_t macro : netlist.macros)
      if (netlist.is_hard(macro) && !start.layout.fixed[std::size_t(macro)]) order.push_back(macro);
    sort_by_area(start.layout, order);
    density = start.density();
    std::vector<std::int32_t> place(netlist.nodes.size(), -1);
    for (std::size_t i = 0; i < order.size(); ++i) place[std::size_t(order[i])] = std::int32_t(i);
    pins.resize(order.size());
    for (std::size_t net = 0; net < netlist.nets.size(); ++net) {
      Extent extent;
      const auto add = [&](std::int32_t node) {
        if (start.layout.is_placed(node)) extent.add(start.layout.position(node));
        else if (const auto of = place[std::size_t(start.layout.owner[std::size_t(node)])]; of >= 0)
          pins[std::size_t(of)].emplace_back(std::int32_t(net), node);
      };
      add(netlist.nets[net]);
      for (const std::int32_t sink : netlist.sinks_of(netlist.nets[net])) add(sink);
      extents.push_back(extent);
      length += extent.half_perimeter() * netlist.net_weights[net];
    }
  }

 private:
  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::invalid_argument("cannot read '" + path + "': prepare the folder with penstock.native.floorplan");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static Evaluator open(const std::string& folder) {
    const std::string netlist = folder + "/netlist.pb.txt", plc = folder + "/start.plc";
    Evaluator out(std::shared_ptr<const Netlist>(NetlistReader::read({{text_of(netlist), netlist}})));
    const PlacementFile file = read_plc(text_of(plc), plc, out.netlist());
    const Comments& c = file.comments;
    if (!c.canvas || !c.grid || !c.congestion_grid || !c.routes || !c.macro_routes || !c.smoothing ||
        !c.overlap_threshold)
      throw std::invalid_argument("'" + plc + "' lacks a setting: prepare the folder with penstock.native.floorplan");
    out.set_canvas((*c.canvas)[0], (*c.canvas)[1]);
    out.set_grid((*c.grid)[0], (*c.grid)[1]);
    out.set_congestion_grid((*c.congestion_grid)[0], (*c.congestion_grid)[1]);
    out.setting.routes = {(*c.routes)[0], (*c.routes)[1], (*c.macro_routes)[0], (*c.macro_routes)[1]};
    out.setting.smoothing = *c.smoothing;
    out.rules.overlap_threshold = *c.overlap_threshold;
    if (c.spacing) out.rules.spacing_across = (*c.spacing)[0], out.rules.spacing_up = (*c.spacing)[1];
    for (const Blockage& b : c.blockages) out.add_blockage(b);
    if (c.square_soft_macros) out.make_soft_macros_square();
    restore(out.layout, file);
    return out;
  }
};

class Episode {
 public:
  explicit Episode(const Block& block)
      : block_(&block), layout_(block.start.layout), mask_(std::size_t(grid().size())) {
    clear();
  }

  [[nodiscard]] std::size_t placed() const { return cells_.size(); }
  [[nodiscard]] const std::vector<std::int32_t>& cells() const { return cells_; }
  [[nodiscard]] bool done() const { return placed() == block_->order.size(); }
  [[nodiscard]] std::span<const std::uint8_t> mask() const { return mask_; }
  /// Weighted wirelength of the nets so far, in um.
  [[nodiscard]] double length() const { return length_; }
  [[nodiscard]] bool stuck() const { return !done() && std::ranges::find(mask_, std::uint8_t{1}) == mask_.end(); }

  void clear() {
    cells_.clear();
    layout_.placed = block_->start.layout.placed;
    density_ = block_->density, extents_ = block_->extents, length_ = block_->length;
    look();
  }

  /// Puts the next macro on a cell; the mask becomes that of the one after it.
  void place(std::int32_t cell) {
    const std::size_t i = placed();
    const std::int32_t macro = block_->order[i];
    layout_.move(macro, grid().centre_of(cell));
    cells_.push_back(cell);
    add_density(density_, grid(), box_of(layout_, macro));
    for (const auto& [net, pin] : block_->pins[i]) {
      Extent& extent = extents_[std::size_t(net)];
      const double before = extent.half_perimeter();
      extent.add(layout_.position(pin));
      length_ += (extent.half_perimeter() - before) * block_->start.netlist().net_weights[std::size_t(net)];
    }
    look();
  }

  /// Places the soft macros by the default schedule; the costs then.
  Costs finish() {
    Forces(layout_, grid(), default_schedule(grid())).run();
    const Setting& setting = block_->start.setting;
    double length = 0;
    const Lines demand = congestion(layout_, setting.congestion_grid, setting.routes, setting.smooth_range(), &length);
    return {wirelength_cost(length, layout_.netlist(), setting.grid),
            density_cost(cell_density(layout_, setting.grid, setting.blockages)), congestion_cost(demand)};
  }

 private:
  const Block* block_;
  Layout layout_;
  std::vector<std::int32_t> cells_;
  std::vector<double> density_;
  std::vector<Extent> extents_;
  double length_ = 0;
  std::vector<std::uint8_t> mask_;

  [[nodiscard]] const Grid& grid() const { return block_->start.setting.grid; }
  void look() {
    if (done()) {
      std::ranges::fill(mask_, std::uint8_t{0});
      return;
    }
    const Legality legality(layout_, grid(), block_->start.rules, block_->start.setting.blockages, density_);
    legality.mask(block_->order[placed()], std::span<std::uint8_t>(mask_));
  }
};

}  // namespace penstock::floorplan
