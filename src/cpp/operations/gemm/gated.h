// Gates and values on a device, where no kernel joins them: the product goes through memory, and functions of it are
// products of nothing, whose epilogues read it as C and as a gate.
#pragma once

#include <functional>

#include "operations/gemm/problem.h"
#include "runtime/device.h"

namespace cutlass_py {

// Runs a gated request, which is that canonical call, by run(request) of others. It has all its memory.
void run_gated(const Request& request, const Call& call, device::Stream stream,
               const std::function<void(const Request&)>& run);

}  // namespace cutlass_py
