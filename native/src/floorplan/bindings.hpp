/// Declarations that the files of native._floorplan share.
#pragma once

#include <pybind11/pybind11.h>

#include "penstock/floorplan/evaluator.hpp"
#include "penstock/floorplan/io/netlist_reader.hpp"
#include "penstock/floorplan/io/netlist_writer.hpp"

namespace penstock::floorplan {

namespace py = pybind11;
using EvaluatorClass = py::class_<Evaluator, std::shared_ptr<Evaluator>>;

/// Returns the value, or throws ValueError with its name.
double at_least_zero(const char* name, double value);

void bind_nodes(EvaluatorClass& c);
void bind_searches(EvaluatorClass& c);

}  // namespace penstock::floorplan
