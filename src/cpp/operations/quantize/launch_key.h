// What a quantize is found by in the launch cache, and what is kept there of it.
#pragma once

#include "operations/quantize/problem.h"
#include "runtime/launch_cache.h"

namespace cutlass_py::quantization {

// Everything that canonicalise reads of a request, addresses by their alignment.
Key launch_key(const Request& request, bool jit);

// The launch of a call's class. Its results are q and the scales.
CachedLaunch cached_launch(const Call& call, const LaunchPlan& plan);

}  // namespace cutlass_py::quantization
