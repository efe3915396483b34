// Kernels that are compiled for the simulated GPU as they are.
#pragma once

#include <vector>

#include "abi/kernel.h"

namespace simulated {

// To which each source with some adds its own before the library is asked for.
std::vector<const CutlassPyKernel*>& kernels();

}  // namespace simulated
