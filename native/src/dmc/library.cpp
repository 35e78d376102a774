/// The control suite's tasks as a library of environments; native/pool/control_suite.py loads it.
#include "penstock/dmc/environment.hpp"
#include "penstock/library.hpp"

using namespace penstock::dmc;

PENSTOCK_LIBRARY(Environment<1>, Environment<2>, Environment<4>, Environment<5>, Environment<6>, Environment<12>,
                 Environment<14>, Environment<21>, Environment<38>, Environment<56>, Environment<1, true>,
                 Environment<2, true>)
