// The plan table: how each class of problem is computed. Filled by cutlass_py.dispatch.planning, once per class.
#pragma once

#include <memory>

#include <nanobind/nanobind.h>

#include "operations/gemm/run.h"

namespace cutlass_py {

namespace nb = nanobind;

struct Plan : DevicePlan {
  nb::object provided = nb::none();  // a kernel written in Python (python_kernel.h); there is no other then
  std::shared_ptr<const Plan> each;  // of a list that no kernel takes: how each matrix goes, one after the other
};

// As in run.h, by any plan; a kernel written in Python has no scratch. Take the GIL to be held.
void run_on_device(const Call& call, const Plan& plan, device::Stream stream, const GivenScratch* given = nullptr);
size_t scratch_bytes(const Call& call, const Plan& plan);

// The plan of a problem; asks cutlass_py.dispatch.planning where there is none yet. By value: another thread may clear the
// table whenever Python code runs.
Plan plan_for(const Problem& problem);

// A plan as dispatch/launch_plan.py describes it; of a device alone, whose multiprocessors are the caller's.
Plan plan_from(nb::handle chosen, const Problem& problem);
DevicePlan device_plan(nb::handle chosen);

// Whether this thread is inside of `with cutlass_py.jit()`, and of `with cutlass_py.autotuning()`.
extern thread_local bool jit_allowed, tuning_allowed;

// The plan that the table has, valid until Python code runs; null where it has none, or has forgotten it.
const Plan* known_plan(const Problem& problem);

// Forgets every plan: the next call of each class asks again.
void clear_plans();

}  // namespace cutlass_py
