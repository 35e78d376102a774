/// The contract of an environment, for authors: one include for all that an environment's header needs.
#pragma once

#include "penstock/env/description.hpp"
