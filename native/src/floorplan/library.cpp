/// Exports native._floorplan as a library of environments too; that part needs no interpreter.
#include "penstock/floorplan/env/environment.hpp"
#include "penstock/library.hpp"

PENSTOCK_LIBRARY(penstock::floorplan::Placing)
