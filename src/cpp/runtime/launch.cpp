#include "runtime/launch.h"

#include "runtime/registry.h"

namespace cutlass_py {

void check(int status, const LaunchPlan& plan, const char* what) {
  if (status == 0) return;
  const CutlassPyLibrary* library = plan.origin ? plan.origin : builtin_library();
  throw CudaError(in_operation(std::string(what) + " failed: " + library->error_string(status) + " (kernel " +
                               (plan.kernel ? plan.kernel->name : "none") + ")"));
}

void launch(const LaunchPlan& plan, const void* arguments, CutlassPyLaunch& launch) {
  // In a graph, a launch that may overlap costs more than it gains, but for one kernel of this package after another:
  // others do not let their successors begin early. Behind those of ours that do not either, it still hides the launch.
  const bool capturing = plan.overlap && device::capturing(launch.stream);
  launch.overlap = plan.overlap && (!capturing || device::follows_marked(launch.stream));
  check(plan.kernel->run(arguments, &launch), plan, "the launch");
  if (capturing) device::mark_last(launch.stream);
}

}  // namespace cutlass_py
