/// What makes native._floorplan a library of environments, beside a module of Python's: it needs no interpreter for that.
#include "penstock/floorplan/environment.hpp"
#include "penstock/library.hpp"

PENSTOCK_LIBRARY(penstock::floorplan::Placing)
