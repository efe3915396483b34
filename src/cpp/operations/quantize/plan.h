// How a quantize is computed: plans as planning.py chooses them, found in the plan table.
#pragma once

#include "operations/quantize/problem.h"
#include "runtime/launch.h"
#include "runtime/plan_table.h"

namespace cutlass_py::quantization {

struct Plan : LaunchPlan {
  nb::object provided = nb::none();  // a kernel written in Python; there is no other then
};

// The plan of a problem; asks cutlass_py.dispatch.planning where there is none yet.
Plan plan_for(const Problem& problem);
const Plan* known_plan(const Problem& problem);  // as PlanTable::known

// A plan as launch_plan.py describes it.
Plan plan_from(nb::handle chosen, const Problem& problem);

// Runs a call by any plan, on the host too. Takes the GIL to be held.
void run_by_plan(const Call& call, const Plan& plan, device::Stream stream);

}  // namespace cutlass_py::quantization
