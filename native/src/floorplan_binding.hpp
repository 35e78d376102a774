/// What the files of native._floorplan share.
#pragma once

#include <pybind11/pybind11.h>

#include "penstock/floorplan/evaluator.hpp"
#include "penstock/floorplan/netlist_reader.hpp"
#include "penstock/floorplan/netlist_writer.hpp"

namespace penstock::floorplan {

namespace py = pybind11;
using EvaluatorClass = py::class_<Evaluator, std::shared_ptr<Evaluator>>;

/// Or ValueError that names what it is.
double at_least_zero(const char* name, double value);

void bind_nodes(EvaluatorClass& c);
void bind_searches(EvaluatorClass& c);

}  // namespace penstock::floorplan
