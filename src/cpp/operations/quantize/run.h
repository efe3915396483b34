// Executes a canonical call of quantize by its plan on a device. Pure C++.
#pragma once

#include <string>

#include "operations/quantize/problem.h"
#include "runtime/launch.h"

namespace cutlass_py::quantization {

// Launches the plan's kernel on `stream`; nothing waits.
inline void run_on_device(const Call& call, const LaunchPlan& plan, device::Stream stream) {
  const device::Relaxed relaxed;  // kernels may be loaded during a capture
  CutlassPyLaunch where = plan.on(call.problem.device.id);
  where.stream = stream;
  launch(plan, &call.arguments, where);
}

// What computes a call, as ranges of a profile name it: the kernel and the extents.
inline std::string range_name(const Problem& p, const std::string& kernel) {
  const std::string batch = p.batch != 1 ? std::to_string(p.batch) + " x " : "";
  return kernel + " " + batch + "(" + std::to_string(p.rows) + ", " + std::to_string(p.cols) + ")";
}

}  // namespace cutlass_py::quantization
