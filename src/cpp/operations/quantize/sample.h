// Times the plans of a problem, on operands made up for it.
#pragma once

#include <vector>

#include "operations/quantize/plan.h"

namespace cutlass_py::quantization {

// As measure (timing.h), the plans being the choices.
std::vector<std::vector<float>> measure(const Problem& problem, const std::vector<Plan>& plans, int rounds);

}  // namespace cutlass_py::quantization
