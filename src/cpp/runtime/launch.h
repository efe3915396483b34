// One launch of a kernel, whatever it computes.
#pragma once

#include "abi/kernel.h"
#include "runtime/device.h"

namespace cutlass_py {

// What is the same in the plans of all operations. Plain data, so that it can be read on a thread without the GIL.
struct LaunchPlan {
  const CutlassPyKernel* kernel = nullptr;
  const CutlassPyLibrary* origin = nullptr;  // the kernel's; null without one
  int raster = 0, swizzle = 1;
  bool overlap = false;  // programmatic dependent launch, where the stream lets it
  int sm_count = 0;

  // As its kernel is told; workspace and stream are still to be said.
  CutlassPyLaunch on(int device) const { return {device, sm_count, raster, swizzle, 0, nullptr, nullptr, kernel}; }
};

// Throws what went wrong with a plan's kernel, or with the elementwise kernels where it has none.
void check(int status, const LaunchPlan& plan, const char* what);

// Launches it, as the plan has it and the stream lets it.
void launch(const LaunchPlan& plan, const void* arguments, CutlassPyLaunch& launch);

}  // namespace cutlass_py
