/// Binds what changes whole placements: files, legalisation, force-directed placement, descent, annealing.
#include <pybind11/stl.h>

#include "bindings.hpp"

namespace penstock::floorplan {
namespace {

py::dict as_dict(const Comments& c) {
  py::dict out;
  if (c.grid) out["grid"] = *c.grid;
  if (c.congestion_grid) out["congestion_grid"] = *c.congestion_grid;
  if (c.canvas) out["canvas"] = *c.canvas;
  if (c.routes) out["routes"] = *c.routes;
  if (c.macro_routes) out["macro_routes"] = *c.macro_routes;
  if (c.smoothing) out["smoothing"] = *c.smoothing;
  if (c.overlap_threshold) out["overlap_threshold"] = *c.overlap_threshold;
  if (c.spacing) out["macro_spacing"] = *c.spacing;
  if (c.square_soft_macros) out["square_soft_macros"] = true;
  if (c.block) out["block"] = *c.block;
  if (c.project) out["project"] = *c.project;
  std::vector<std::array<double, 5>> blockages;
  for (const Blockage& b : c.blockages) blockages.push_back({b.x0, b.y0, b.x1, b.y1, b.rate});
  if (!blockages.empty()) out["blockages"] = blockages;
  return out;
}

void optimize(Evaluator& e, bool from_current, bool move_cells, bool move_hard, bool log_scale, bool use_sizes,
              double io_factor, const std::vector<std::int64_t>& steps, const std::vector<double>& most_move,
              const std::vector<double>& attraction, const std::vector<double>& repulsion) {
  if (log_scale || use_sizes)
    throw py::value_error("log_scale_conns and use_sizes must be False: no placement with them is published");
  if (most_move.size() != steps.size() || attraction.size() != steps.size() || repulsion.size() != steps.size())
    throw py::value_error(
        "num_steps, max_move_distance, attract_factor and repel_factor must be of one length, a value a phase");
  Schedule schedule{.phases = {},
                    .io_factor = at_least_zero("io_factor", io_factor),
                    .from_current = from_current,
                    .move_cells = move_cells,
                    .move_hard = move_hard};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] < 0) throw py::value_error("num_steps has a number below 0");
    schedule.phases.push_back({steps[i], at_least_zero("max_move_distance", most_move[i]),
                               at_least_zero("attract_factor", attraction[i]),
                               at_least_zero("repel_factor", repulsion[i])});
  }
  const penstock::Unlocked released;
  Forces(e.layout, e.setting.grid, schedule).run();
}

py::dict anneal(Evaluator& e, const AnnealSettings& settings, const py::function& on_progress) {
  Annealed found;
  bool interrupted = false;
  {
    const penstock::Unlocked released;
    Annealer annealer(e.layout, e.setting, e.rules, settings);
    found = annealer.run([&](std::int64_t judged) {
      const penstock::Locked acquired;
      on_progress(judged, settings.moves);
      return interrupted = PyErr_CheckSignals() != 0;
    });
  }
  if (interrupted) throw py::error_already_set();
  std::vector<std::tuple<std::int64_t, double, double, double>> curve;
  for (const AnnealPoint& p : found.curve) curve.emplace_back(p.moves, p.temperature, p.cost, p.best);
  py::dict out;
  out["cost"] = found.cost;
  out["proposed"] = found.proposed, out["judged"] = found.judged, out["accepted"] = found.accepted;
  out["curve"] = curve;
  return out;
}

CostWeights weights_of(const std::array<double, 3>& given) {
  for (const double weight : given) at_least_zero("cost_weights", weight);
  return {given[0], given[1], given[2]};
}

}  // namespace

void bind_searches(EvaluatorClass& c) {
  c.def("_netlist_comments", [](const Evaluator& e) { return as_dict(e.netlist().comments); });
  c.def(
      "_read_plc",
      [](const Evaluator& e, const std::string& text, const std::string& file) {
        return as_dict(read_plc(text, file, e.netlist()).comments);
      },
      py::arg("text"), py::arg("file"));
  c.def(
      "_restore",
      [](Evaluator& e, const std::string& text, const std::string& file) {
        restore(e.layout, read_plc(text, file, e.netlist()));
      },
      py::arg("text"), py::arg("file"));
  c.def("_plc_lines", [](const Evaluator& e) { return plc_lines(e.layout); });
  c.def(
      "legalize",
      [](Evaluator& e, bool only_hard) {
        return legalise(e.layout, e.setting.grid, e.rules, e.setting.blockages, only_hard);
      },
      py::arg("only_hard") = false, py::call_guard<penstock::Unlocked>());
  c.def("optimize_stdcells", &optimize, py::arg("use_current_loc"), py::arg("move_stdcells"), py::arg("move_macros"),
        py::arg("log_scale_conns"), py::arg("use_sizes"), py::arg("io_factor"), py::arg("num_steps"),
        py::arg("max_move_distance"), py::arg("attract_factor"), py::arg("repel_factor"));
  c.def("place_soft_macros", [](Evaluator& e) {
    const penstock::Unlocked released;
    Forces(e.layout, e.setting.grid, default_schedule(e.setting.grid)).run();
  });
  c.def(
      "_wire_map",
      [](const Evaluator& e, std::int32_t macro) {
        WireMap map(e.layout, e.setting.grid);
        map.find(macro);
        return std::pair(map.columns(), map.rows());
      },
      py::arg("macro"));
  c.def(
      "_descend",
      [](Evaluator& e, std::int64_t passes, std::int32_t most_distance, bool only_orientations, bool place_soft,
         double least_gain, std::uint64_t seed, const std::array<double, 3>& weights) {
        const DescentSettings settings{passes,     most_distance, only_orientations,  place_soft,
                                       least_gain, seed,          weights_of(weights)};
        const penstock::Unlocked released;
        return descend(e.layout, e.setting, e.rules, settings);
      },
      py::arg("passes"), py::arg("most_distance"), py::arg("only_orientations"), py::arg("place_soft"),
      py::arg("least_gain"), py::arg("seed"), py::arg("weights"));
  c.def(
      "_anneal",
      [](Evaluator& e, std::int64_t moves, double first, double last, std::int64_t soft_every, std::int64_t points,
         std::uint64_t seed, const std::array<double, 13>& proposals, const std::array<double, 3>& weights,
         bool leave_last, const py::function& on_progress) {
        const auto& p = proposals;
        const AnnealSettings settings{
            moves,      first, last,
            soft_every, points, seed,
            {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12]},
            leave_last, weights_of(weights)};
        return anneal(e, settings, on_progress);
      },
      py::arg("moves"), py::arg("first_temperature"), py::arg("last_temperature"), py::arg("soft_every"),
      py::arg("points"), py::arg("seed"), py::arg("proposals"), py::arg("weights"), py::arg("leave_last"), py::arg("on_progress"));
}

}  // namespace penstock::floorplan
