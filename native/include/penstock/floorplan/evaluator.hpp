/// A block with a placement and all that its costs depend on.
#pragma once

#include <utility>

#include "penstock/floorplan/costs/adjacency.hpp"
#include "penstock/floorplan/search/anneal.hpp"
#include "penstock/floorplan/io/plc.hpp"

namespace penstock::floorplan {

/// A copy shares the netlist, and nothing else. Throws std::invalid_argument where a caller asks for what cannot be.
class Evaluator {
 public:
  explicit Evaluator(std::shared_ptr<const Netlist> netlist) : netlist_(std::move(netlist)), layout(netlist_) {
    const double side = area() > 0 ? std::clamp(std::sqrt(area() / 0.6), 1e-6, 1e9) : 1.0;
    setting.grid = setting.congestion_grid = {side, side, 10, 10};
    began_ = layout.orientation;
  }

  std::shared_ptr<const Netlist> netlist_;
  Layout layout;
  Setting setting;
  Rules rules;
  std::vector<FakeNet> fake_nets;
  bool boundary_check = true;

  [[nodiscard]] const Netlist& netlist() const { return *netlist_; }
  [[nodiscard]] std::int32_t count() const { return std::int32_t(netlist_->nodes.size()); }

  // Settings.
  void set_canvas(double width, double height) {
    for (const double side : {width, height})
      if (!(side >= 1e-6 && side <= 1e9)) throw std::invalid_argument("a side of the canvas is from 1e-6 to 1e9 um");
    setting.grid.width = setting.congestion_grid.width = width;
    setting.grid.height = setting.congestion_grid.height = height;
  }
  void set_grid(std::int64_t columns, std::int64_t rows) {
    check_cells(columns, rows);
    setting.grid.columns = std::int32_t(columns), setting.grid.rows = std::int32_t(rows);
    if (!own_congestion_grid_) follow(setting.congestion_grid, columns, rows);
  }
  /// Until this is called, the congestion grid has the cells of the placement grid.
  void set_congestion_grid(std::int64_t columns, std::int64_t rows) {
    check_cells(columns, rows);
    own_congestion_grid_ = true;
    follow(setting.congestion_grid, columns, rows);
  }
  /// One whose first corner is not the lower left is kept, as the public evaluator keeps it, and covers nothing.
  void add_blockage(const Blockage& b) {
    const bool finite = std::isfinite(b.x0) && std::isfinite(b.y0) && std::isfinite(b.x1) && std::isfinite(b.y1);
    if (!finite || !(b.rate >= 0 && b.rate <= 1))
      throw std::invalid_argument("a blockage needs four finite coordinates and a rate from 0 to 1");
    setting.blockages.push_back(b);
  }
  void make_soft_macros_square() {
    for (const std::int32_t macro : netlist_->macros)
      if (!netlist_->is_hard(macro)) {
        double &width = layout.width[std::size_t(macro)], &height = layout.height[std::size_t(macro)];
        width = height = std::sqrt(width * height);
      }
  }

  // Costs.
  [[nodiscard]] double area() const {
    double sum = 0;
    for (std::int32_t i = 0; i < count(); ++i)
      if (takes_room(*netlist_, i)) sum += layout.width[std::size_t(i)] * layout.height[std::size_t(i)];
    return sum;
  }
  [[nodiscard]] double length() const { return wirelength(layout); }
  [[nodiscard]] double length_cost() const { return wirelength_cost(length(), *netlist_, setting.grid); }
  [[nodiscard]] std::vector<double> density() const { return cell_density(layout, setting.grid, setting.blockages); }
  [[nodiscard]] Lines routing() const {
    return congestion(layout, setting.congestion_grid, setting.routes, setting.smooth_range());
  }
  [[nodiscard]] Costs costs() const {
    double length = 0;
    const Lines demand = congestion(layout, setting.congestion_grid, setting.routes, setting.smooth_range(), &length);
    return {wirelength_cost(length, *netlist_, setting.grid), density_cost(density()), congestion_cost(demand)};
  }

  // Nodes.
  void check_node(std::int64_t node) const {
    if (node < 0 || node >= count())
      throw std::invalid_argument("node " + std::to_string(node) + " is not there; the netlist has " +
                                  std::to_string(count()) + " nodes, counted from 0");
  }
  /// Throws unless a node has a position of its own.
  void check_owner(std::int64_t node) const {
    check_node(node);
    if (netlist_->is_pin(std::int32_t(node)))
      throw std::invalid_argument("node " + std::to_string(node) + " is a pin: place its macro, node " +
                                  std::to_string(layout.owner[std::size_t(node)]));
  }
  void check_macro(std::int64_t node) const {
    check_node(node);
    if (!netlist_->is_macro(std::int32_t(node)))
      throw std::invalid_argument("node " + std::to_string(node) + " is no macro");
  }
  void check_cell(std::int64_t cell) const {
    if (cell < 0 || cell >= setting.grid.size())
      throw std::invalid_argument("cell " + std::to_string(cell) + " is not there; the grid has " +
                                  std::to_string(setting.grid.size()) + " cells, counted from 0");
  }
  void check_free(std::int64_t node) const {
    check_owner(node);
    if (layout.fixed[std::size_t(node)])
      throw std::invalid_argument("node " + std::to_string(node) + " is fixed; unfix_node_coord frees it");
  }
  [[nodiscard]] std::int32_t index_of(std::string_view name) const {
    const auto found = netlist_->index.find(name);
    if (found == netlist_->index.end()) throw std::invalid_argument("no node is called '" + shown(name, 80) + "'");
    return found->second;
  }

  void place(std::int64_t node, std::int64_t cell) {
    check_free(node), check_cell(cell);
    layout.move(std::int32_t(node), setting.grid.centre_of(std::int32_t(cell)));
  }
  void move(std::int64_t node, double x, double y) {
    check_free(node);
    if (!std::isfinite(x) || !std::isfinite(y)) throw std::invalid_argument("coordinates must be finite");
    if (boundary_check && setting.grid.cell_of({x, y}) < 0)
      throw std::invalid_argument("the position is outside the canvas; set_canvas_boundary_check(False) lets it");
    layout.move(std::int32_t(node), {x, y});
  }
  void unplace(std::int64_t node) {
    check_free(node);
    layout.placed[std::size_t(node)] = 0;
  }
  void fix(std::int64_t node) {
    check_owner(node);
    layout.fixed[std::size_t(node)] = 1;
  }
  void unfix(std::int64_t node) {
    check_owner(node);
    layout.fixed[std::size_t(node)] = 0;
  }
  void unplace_all() {
    for (std::int32_t i = 0; i < count(); ++i)
      if (!layout.fixed[std::size_t(i)]) layout.placed[std::size_t(i)] = 0;
  }
  /// A fixed macro turns too: what is fixed are its coordinates.
  void turn(std::int64_t macro, std::string_view name) {
    check_macro(macro);
    const auto to = orientation_of(name);
    if (!to || !same_group(*to, began_[std::size_t(macro)]) || !netlist_->is_hard(std::int32_t(macro)))
      throw std::invalid_argument("orientation '" + shown(name) +
                                  "': expected one of a hard macro's own four (N, FN, S, "
                                  "FS or E, FE, W, FW)");
    layout.turn(std::int32_t(macro), *to);
  }
  [[nodiscard]] std::vector<std::int32_t> mask(std::int64_t node) const {
    check_owner(node);
    const std::vector<double> now = density();
    return Legality(layout, setting.grid, rules, setting.blockages, now).mask(std::int32_t(node));
  }

 private:
  bool own_congestion_grid_ = false;
  std::vector<Orientation> began_;  ///< as the file has them

  static void follow(Grid& grid, std::int64_t columns, std::int64_t rows) {
    grid.columns = std::int32_t(columns), grid.rows = std::int32_t(rows);
  }
  static void check_cells(std::int64_t columns, std::int64_t rows) {
    if (std::min(columns, rows) < 1 || std::max(columns, rows) > most_cells_a_side)
      throw std::invalid_argument("a grid has from 1 to " + std::to_string(most_cells_a_side) + " columns and rows");
  }
};

}  // namespace penstock::floorplan
