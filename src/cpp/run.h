// Executes a canonical call by its plan, on a device or on the host.
#pragma once

#include "device.h"
#include "plan.h"

namespace cutlass_py {

// Packs what must be packed, launches the kernel, finishes with the composed epilogue: all on `stream`, nothing waits.
void run_on_device(const Call& call, const Plan& plan, device::Stream stream);

// Hands the operands to the plan's Python provider.
void run_on_host(const Call& call, const Plan& plan);

// A matrix as the Python side takes it: (address, dtype, shape, strides in bytes); None where there is none.
nb::object host_operand(const Matrix& matrix, int64_t rows, int64_t cols, int64_t batch);

}  // namespace cutlass_py
