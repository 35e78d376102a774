/// NumPy's scalar arithmetic, for authors whose environments must equal Gymnasium's to the last bit.
#pragma once

#include "penstock/random/numpy_math.hpp"
