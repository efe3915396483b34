// Kernels written in Python (provider.py): a canonical call with its operands lent, for as long as it takes.
#pragma once

#include "operations/quantize/plan.h"

namespace cutlass_py::quantization {

// Runs a call by the plan's Python function, on `stream` where it is for a device, which must be current.
void run_python_kernel(const Call& call, const Plan& plan, device::Stream stream);

}  // namespace cutlass_py::quantization
