/// PENSTOCK_LIBRARY, for authors: one include for a library of environments.
#pragma once

#include "penstock/env.hpp"
#if defined(__CUDACC__)
#include "penstock/batch/cuda.hpp"
#else
#include "penstock/library/export.hpp"
#endif
