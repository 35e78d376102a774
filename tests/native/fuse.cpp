// The library that test_async.py loads.
#include "fuse.hpp"

#include "penstock/library.hpp"

PENSTOCK_LIBRARY(penstock::Fuse)
