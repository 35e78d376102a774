/// Binds what the evaluator says of nodes, and how they are placed.
#include <pybind11/stl.h>

#include "bindings.hpp"

namespace penstock::floorplan {
namespace {

std::int32_t counted(const Evaluator& e, auto&& counts) {
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < e.count(); ++i) count += counts(i);
  return count;
}

std::pair<double, double> location(const Evaluator& e, std::int64_t node) {
  e.check_node(node);
  if (!e.layout.is_placed(std::int32_t(node)))
    throw py::value_error("node " + std::to_string(node) + " is not placed, so it has no location");
  const Point at = e.layout.position(std::int32_t(node));
  return {at.x, at.y};
}

std::vector<std::int32_t> fan_outs(const Evaluator& e, std::int64_t node) {
  e.check_node(node);
  const auto i = std::int32_t(node);
  if (!e.netlist().is_macro(i)) {
    const auto sinks = e.netlist().sinks_of(i);
    return {sinks.begin(), sinks.end()};
  }
  std::vector<std::int32_t> out;
  for (const std::int32_t pin : e.layout.pins[std::size_t(i)])
    if (!e.netlist().sinks_of(pin).empty()) out.push_back(pin);
  return out;
}

void bind_facts(EvaluatorClass& c) {
  c.def("get_node_count", &Evaluator::count);
  c.def("get_net_count", [](const Evaluator& e) { return e.netlist().nets.size(); });
  c.def("get_total_net_weight", [](const Evaluator& e) { return e.netlist().total_weight; });
  const auto count_of = [&c](const char* name, auto counts) {
    c.def(name,
          [counts](const Evaluator& e) { return counted(e, [&](std::int32_t i) { return counts(e.netlist(), i); }); });
  };
  using N = const Netlist&;
  count_of("get_ports_count", [](N n, std::int32_t i) { return n.nodes[std::size_t(i)].type == NodeType::port; });
  count_of("get_stdcells_count", [](N n, std::int32_t i) { return n.nodes[std::size_t(i)].type == NodeType::stdcell; });
  count_of("get_hard_macros_count", [](N n, std::int32_t i) { return n.is_hard(i); });
  count_of("get_soft_macros_count", [](N n, std::int32_t i) { return n.is_macro(i) && !n.is_hard(i); });
  count_of("get_hard_macro_pins_count",
           [](N n, std::int32_t i) { return n.is_pin(i) && n.is_hard(n.nodes[std::size_t(i)].macro); });
  count_of("get_soft_macro_pins_count",
           [](N n, std::int32_t i) { return n.is_pin(i) && !n.is_hard(n.nodes[std::size_t(i)].macro); });
  c.def("get_macro_indices", [](const Evaluator& e) { return e.netlist().macros; });
  c.def("get_node_index", &Evaluator::index_of, py::arg("node_name"));
  c.def(
      "get_node_name",
      [](const Evaluator& e, std::int64_t node) {
        return node >= 0 && node < e.count() ? e.netlist().nodes[std::size_t(node)].name : std::string();
      },
      py::arg("node_index"));
  c.def(
      "get_node_type",
      [](const Evaluator& e, std::int64_t node) {
        return node >= 0 && node < e.count()
                   ? std::string(type_names[std::size_t(e.netlist().nodes[std::size_t(node)].type)])
                   : std::string();
      },
      py::arg("node_index"));
  c.def(
      "is_node_soft_macro",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return e.netlist().nodes[std::size_t(node)].soft;
      },
      py::arg("node_index"));
  c.def(
      "get_node_width_height",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return std::pair(e.layout.width[std::size_t(node)], e.layout.height[std::size_t(node)]);
      },
      py::arg("node_index"));
  c.def(
      "get_ref_node_id",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return e.netlist().nodes[std::size_t(node)].macro;
      },
      py::arg("node_index"));
  c.def("get_fan_outs_of_node", &fan_outs, py::arg("node_index"));
  c.def(
      "get_node_weight",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return e.netlist().nodes[std::size_t(node)].weight;
      },
      py::arg("node_index"));
}

void bind_places(EvaluatorClass& c) {
  c.def("get_node_location", &location, py::arg("node_index"));
  c.def(
      "get_node_locations",
      [](const Evaluator& e, const std::vector<std::int64_t>& nodes) {
        std::vector<std::pair<double, double>> out;
        for (const std::int64_t node : nodes) out.push_back(location(e, node));
        return out;
      },
      py::arg("node_indices"));
  c.def(
      "get_grid_cell_of_node",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return e.layout.is_placed(std::int32_t(node)) ? e.setting.grid.cell_of(e.layout.position(std::int32_t(node)))
                                                      : -1;
      },
      py::arg("node_index"));
  c.def(
      "is_node_placed",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return e.layout.is_placed(std::int32_t(node));
      },
      py::arg("node_index"));
  c.def(
      "is_node_fixed",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return e.layout.fixed[std::size_t(node)] != 0;
      },
      py::arg("node_index"));
  c.def(
      "get_macro_orientation",
      [](const Evaluator& e, std::int64_t node) {
        e.check_node(node);
        return e.netlist().is_macro(std::int32_t(node))
                   ? std::string(orientation_names[std::size_t(e.layout.orientation[std::size_t(node)])])
                   : std::string();
      },
      py::arg("node_index"));
  c.def("fix_node_coord", succeeds(&Evaluator::fix), py::arg("node_index"));
  c.def("unfix_node_coord", succeeds(&Evaluator::unfix), py::arg("node_index"));
  c.def("fix_ports", [](Evaluator& e) {
    for (std::int32_t i = 0; i < e.count(); ++i)
      if (e.netlist().nodes[std::size_t(i)].type == NodeType::port) e.layout.fixed[std::size_t(i)] = 1;
  });
  c.def("place_node", succeeds(&Evaluator::place), py::arg("node_index"), py::arg("grid_cell_index"));
  c.def("update_node_coords", succeeds(&Evaluator::move), py::arg("node_index"), py::arg("x"), py::arg("y"));
  c.def("unplace_node", succeeds(&Evaluator::unplace), py::arg("node_index"));
  c.def("unplace_all_nodes", &Evaluator::unplace_all);
  c.def("update_macro_orientation", succeeds(&Evaluator::turn), py::arg("node_index"), py::arg("orientation"));
  c.def("get_node_mask", &Evaluator::mask, py::arg("node_index"));
  c.def(
      "can_place_node",
      [](const Evaluator& e, std::int64_t node, std::int64_t cell) {
        e.check_cell(cell);
        return e.mask(node)[std::size_t(cell)] != 0;
      },
      py::arg("node_index"), py::arg("grid_cell_index"));
}

void bind_names(EvaluatorClass& c) {
  c.def("place_node_by_name", succeeds_by_name(&Evaluator::place), py::arg("node_name"), py::arg("grid_cell_index"));
  c.def("unplace_node_by_name", succeeds_by_name(&Evaluator::unplace), py::arg("node_name"));
  c.def("update_node_coords_by_name", succeeds_by_name(&Evaluator::move), py::arg("node_name"), py::arg("x"),
        py::arg("y"));
  c.def("update_macro_orientation_by_name", succeeds_by_name(&Evaluator::turn), py::arg("node_name"),
        py::arg("orientation"));
  c.def(
      "get_node_mask_by_name", [](const Evaluator& e, const std::string& name) { return e.mask(e.index_of(name)); },
      py::arg("node_name"));
}

}  // namespace

void bind_nodes(EvaluatorClass& c) {
  bind_facts(c);
  bind_places(c);
  bind_names(c);
}

}  // namespace penstock::floorplan
