// How a gemm is computed: plans as launch_plan.py describes them, found in the plan table.
#pragma once

#include <memory>

#include "operations/gemm/run.h"
#include "runtime/plan_table.h"

namespace cutlass_py {

struct Plan : DevicePlan {
  nb::object provided = nb::none();  // a kernel written in Python (python_kernel.h); there is no other then
  std::shared_ptr<const Plan> each;  // of a list that no kernel takes: how each matrix goes, one after the other
  bool divided = false;              // of groups that no kernel takes: each is a problem of its own
};

// As in run.h, by any plan, on the host too; a kernel written in Python has no scratch. Take the GIL to be held.
void run_by_plan(const Call& call, const Plan& plan, device::Stream stream, const GivenScratch* given = nullptr);
size_t scratch_bytes(const Call& call, const Plan& plan);

// The plan of a problem; asks cutlass_py.dispatch.planning where there is none yet.
Plan plan_for(const Problem& problem);
const Plan* known_plan(const Problem& problem);  // as PlanTable::known

// A plan as launch_plan.py describes it; of a device alone, whose multiprocessors are the caller's.
Plan plan_from(nb::handle chosen, const Problem& problem);
DevicePlan device_plan(nb::handle chosen);

}  // namespace cutlass_py
