/// The extension module native._floorplan: the evaluator of placements, under the names that circuit_training's users
/// know. native/floorplan adds files and documentation.
#include <pybind11/stl.h>

#include "bindings.hpp"

namespace penstock::floorplan {
namespace {

using Pair = std::pair<double, double>;

double routes_of(double least, double value) {
  if (!(value >= least && value <= most_routes))
    throw py::value_error("routes are " + std::to_string(value) + " per micron, expected from " +
                          (least > 0 ? "1e-9" : "0") + " to 1e9");
  return value;
}

/// Row by row.
template <class Index>
std::vector<double> values_of(const Lines& lines, Index&& index) {
  std::vector<double> out;
  for (std::int32_t row = 0; row < lines.rows; ++row)
    for (std::int32_t column = 0; column < lines.columns; ++column) out.push_back(lines.both[index(row, column)]);
  return out;
}
std::vector<double> across_of(const Lines& lines) {
  return values_of(lines, [&](std::int32_t row, std::int32_t column) { return lines.across(row, column); });
}
std::vector<double> up_of(const Lines& lines) {
  return values_of(lines, [&](std::int32_t row, std::int32_t column) { return lines.up(row, column); });
}

std::shared_ptr<Evaluator> make(const std::vector<std::pair<std::string, std::string>>& named_texts) {
  std::vector<SourceText> sources;
  for (const auto& [file, text] : named_texts) sources.push_back({text, file});
  const penstock::Unlocked released;
  return std::make_shared<Evaluator>(std::shared_ptr<const Netlist>(NetlistReader::read(sources)));
}

void bind_settings(EvaluatorClass& c) {
  c.def("set_canvas_size", succeeds(&Evaluator::set_canvas), py::arg("width"), py::arg("height"));
  c.def("get_canvas_width_height",
        [](const Evaluator& e) { return Pair(e.setting.grid.width, e.setting.grid.height); });
  c.def("set_placement_grid", succeeds(&Evaluator::set_grid), py::arg("columns"), py::arg("rows"));
  c.def("get_grid_num_columns_rows",
        [](const Evaluator& e) { return std::pair(e.setting.grid.columns, e.setting.grid.rows); });
  c.def("set_congestion_grid", &Evaluator::set_congestion_grid, py::arg("columns"), py::arg("rows"));
  c.def("get_congestion_grid_num_columns_rows", [](const Evaluator& e) {
    return std::pair(e.setting.congestion_grid.columns, e.setting.congestion_grid.rows);
  });
  c.def(
      "set_routes_per_micron",
      [](Evaluator& e, double across, double up) {
        e.setting.routes.across = routes_of(least_routes, across);
        e.setting.routes.up = routes_of(least_routes, up);
      },
      py::arg("horizontal"), py::arg("vertical"));
  c.def("get_routes_per_micron", [](const Evaluator& e) { return Pair(e.setting.routes.across, e.setting.routes.up); });
  c.def(
      "set_macro_routing_allocation",
      [](Evaluator& e, double across, double up) {
        e.setting.routes.macro_across = routes_of(0, across);
        e.setting.routes.macro_up = routes_of(0, up);
      },
      py::arg("horizontal"), py::arg("vertical"));
  c.def("get_macro_routing_allocation",
        [](const Evaluator& e) { return Pair(e.setting.routes.macro_across, e.setting.routes.macro_up); });
  c.def(
      "set_congestion_smooth_range",
      [](Evaluator& e, double range) { e.setting.smoothing = at_least_zero("congestion smooth range", range); },
      py::arg("range"));
  c.def("get_congestion_smooth_range", [](const Evaluator& e) { return e.setting.smoothing; });
  c.def(
      "set_overlap_threshold",
      [](Evaluator& e, double length) { e.rules.overlap_threshold = at_least_zero("overlap threshold", length); },
      py::arg("length"));
  c.def("get_overlap_threshold", [](const Evaluator& e) { return e.rules.overlap_threshold; });
  c.def(
      "set_macro_macro_spacing",
      [](Evaluator& e, double x, double y) {
        e.rules.spacing_across = at_least_zero("macro spacing", x),
        e.rules.spacing_up = at_least_zero("macro spacing", y);
      },
      py::arg("x"), py::arg("y"));
  c.def("get_macro_macro_spacing", [](const Evaluator& e) { return Pair(e.rules.spacing_across, e.rules.spacing_up); });
  c.def("set_canvas_boundary_check", [](Evaluator& e, bool check) { e.boundary_check = check; }, py::arg("check"));
  c.def("get_canvas_boundary_check", [](const Evaluator& e) { return e.boundary_check; });
  c.def("set_place_hard_macros_over_cells", [](Evaluator& e, bool on) { e.rules.hard_over_cells = on; }, py::arg("on"));
  c.def("make_soft_macros_square", &Evaluator::make_soft_macros_square);
  c.def(
      "create_blockage",
      [](Evaluator& e, double x0, double y0, double x1, double y1, double rate) {
        e.add_blockage({x0, y0, x1, y1, rate});
      },
      py::arg("minx"), py::arg("miny"), py::arg("maxx"), py::arg("maxy"), py::arg("blockage_rate"));
  c.def("get_blockages", [](const Evaluator& e) {
    std::vector<std::array<double, 5>> out;
    for (const Blockage& b : e.setting.blockages) out.push_back({b.x0, b.y0, b.x1, b.y1, b.rate});
    return out;
  });
  c.def(
      "add_fake_net",
      [](Evaluator& e, double weight, std::vector<std::int32_t> nodes) {
        for (const std::int32_t node : nodes) e.check_node(node);
        e.fake_nets.push_back({at_least_zero("weight of a fake net", weight), std::move(nodes)});
      },
      py::arg("weight"), py::arg("nodes"));
  c.def("get_fake_nets", [](const Evaluator& e) {
    std::vector<std::pair<double, std::vector<std::int32_t>>> out;
    for (const FakeNet& net : e.fake_nets) out.emplace_back(net.weight, net.nodes);
    return out;
  });
}

void bind_costs(EvaluatorClass& c) {
  const auto released = py::call_guard<penstock::Unlocked>();
  c.def("get_area", &Evaluator::area);
  c.def("get_wirelength", &Evaluator::length, released);
  c.def("get_cost", &Evaluator::length_cost, released);
  c.def("get_density_cost", [](const Evaluator& e) { return density_cost(e.density()); }, released);
  c.def("get_congestion_cost", [](const Evaluator& e) { return congestion_cost(e.routing()); }, released);
  c.def("get_fake_net_cost", [](const Evaluator& e) {
    return fake_net_cost(e.layout, e.fake_nets, e.setting.grid.width + e.setting.grid.height);
  });
  c.def(
      "get_costs",
      [](const Evaluator& e) {
        const Costs costs = e.costs();
        return std::tuple(costs.wirelength, costs.density, costs.congestion);
      },
      released);
  c.def("get_grid_cells_density", &Evaluator::density, released);
  c.def("get_horizontal_routing_congestion", [](const Evaluator& e) { return across_of(e.routing()); }, released);
  c.def("get_vertical_routing_congestion", [](const Evaluator& e) { return up_of(e.routing()); }, released);
  c.def("get_macro_adjacency", [](const Evaluator& e) { return adjacency(e.layout, nullptr).weights; });
  c.def("get_macro_and_clustered_port_adjacency", [](const Evaluator& e) {
    Adjacency found = adjacency(e.layout, &e.setting.grid);
    return std::pair(std::move(found.weights), std::move(found.port_cells));
  });
}

}  // namespace

double at_least_zero(const char* name, double value) {
  if (!(value >= 0 && value <= most_setting))
    throw py::value_error(std::string(name) + " is " + std::to_string(value) + ", expected a number from 0 to 1e12");
  return value;
}

}  // namespace penstock::floorplan

PYBIND11_MODULE(_floorplan, module) {
  using namespace penstock::floorplan;
  module.doc() = "The evaluator of macro placements; use it through penstock.native.floorplan.";
  py::register_exception<ReadError>(module, "BlockFileError", PyExc_ValueError);
  EvaluatorClass c(module, "Evaluator");
  c.def(py::init(&make), py::arg("named_texts"));
  c.def(py::init<const Evaluator&>(), py::arg("other"));
  c.def("_netlist_text", [](const Evaluator& e) { return NetlistWriter::write(e.netlist()); });
  bind_settings(c);
  bind_costs(c);
  bind_nodes(c);
  bind_searches(c);
}
