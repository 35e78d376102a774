/// PENSTOCK_LIBRARY, for authors: one include for a library of environments.
#pragma once

#include "penstock/library/export.hpp"
