// What a gemm is found by in the launch cache, and what is kept there of it. Pure C++, as canonicalise is.
#pragma once

#include "operations/gemm/run.h"
#include "runtime/launch_cache.h"

namespace cutlass_py {

// Everything that canonicalise reads of a request: addresses by their alignment, numbers among the factors by whether
// they are 0 or 1. What else follows from addresses is overlap, which is looked at in each call. Empty for calls that
// are not kept: lists, a user's epilogue, many dimensions.
Key launch_key(const Request& request, bool jit, CutlassPyOperation operation = CUTLASS_PY_GEMM);

// The launch of a call's class; empty where the class takes more than that.
CachedLaunch cached_launch(const Call& call, const DevicePlan& plan);

// The numbers that it is filled with.
struct LaunchNumbers {
  static constexpr int kCount = 3;
  explicit LaunchNumbers(const Request& request);
  CutlassPyScalar values[kCount];
};

}  // namespace cutlass_py
