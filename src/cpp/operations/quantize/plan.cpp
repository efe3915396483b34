#include "operations/quantize/plan.h"

#include <nanobind/stl/string.h>

#include "operations/quantize/python_kernel.h"
#include "operations/quantize/run.h"
#include "runtime/registry.h"

namespace cutlass_py::quantization {

Plan plan_from(nb::handle chosen, const Problem& problem) {
  Plan plan;
  plan.provided = chosen.attr("provided");
  if (nb::object kernel = chosen.attr("kernel"); !kernel.is_none()) {
    const KernelEntry& entry = loaded_kernel(nb::cast<std::string>(kernel));
    plan.kernel = entry.kernel, plan.origin = entry.origin;
  }
  if (problem.device.type == DeviceType::cuda) plan.sm_count = device::info(problem.device.id).sm_count;
  return plan;
}

const Plan* known_plan(const Problem& problem) {
  return PlanTable<Plan>::of_operation().known({CUTLASS_PY_QUANTIZE, problem});
}

Plan plan_for(const Problem& problem) {
  return PlanTable<Plan>::of_operation().find({CUTLASS_PY_QUANTIZE, problem},
                                              [&] { return plan_from(selected(nb::cast(problem)), problem); });
}

void run_by_plan(const Call& call, const Plan& plan, device::Stream stream) {
  if (!plan.provided.is_none()) return run_python_kernel(call, plan, stream);
  nb::gil_scoped_release may_wait;  // for room in the stream, behind work that needs the interpreter
  run_on_device(call, plan, stream);
}

}  // namespace cutlass_py::quantization
