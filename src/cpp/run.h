// Executes a canonical call by its plan on a device.
#pragma once

#include "device.h"
#include "plan.h"

namespace cutlass_py {

// Packs what must be packed, launches the kernel, finishes with the composed epilogue: all on `stream`, nothing waits.
void run_on_device(const Call& call, const Plan& plan, device::Stream stream);

}  // namespace cutlass_py
