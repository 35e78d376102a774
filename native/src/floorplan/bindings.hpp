/// Declarations that the files of native._floorplan share.
#pragma once

#include <pybind11/pybind11.h>

#include "../interpreter_lock.hpp"
#include "penstock/floorplan/evaluator.hpp"
#include "penstock/floorplan/io/netlist_reader.hpp"
#include "penstock/floorplan/io/netlist_writer.hpp"

namespace penstock::floorplan {

namespace py = pybind11;
using EvaluatorClass = py::class_<Evaluator, std::shared_ptr<Evaluator>>;

/// Binds a method that throws where it fails: the public evaluator returns True where it succeeds.
template <class... Arguments>
auto succeeds(void (Evaluator::*method)(Arguments...)) {
  return [method](Evaluator& e, Arguments... arguments) {
    (e.*method)(arguments...);
    return true;
  };
}
/// The same for the node of a name.
template <class... Arguments>
auto succeeds_by_name(void (Evaluator::*method)(std::int64_t, Arguments...)) {
  return [method](Evaluator& e, const std::string& name, Arguments... arguments) {
    (e.*method)(e.index_of(name), arguments...);
    return true;
  };
}

/// Returns the value, or throws ValueError with its name.
double at_least_zero(const char* name, double value);

void bind_nodes(EvaluatorClass& c);
void bind_searches(EvaluatorClass& c);

}  // namespace penstock::floorplan
