#include "operations/gemm/plan.h"

#include <nanobind/stl/string.h>

#include "arrays/dlpack_view.h"
#include "operations/gemm/python_kernel.h"
#include "runtime/device.h"
#include "runtime/registry.h"

namespace cutlass_py {
namespace {

// The problem of each matrix of a list.
Problem one_of(Problem list) {
  list.pointers = false;
  list.batch = 1;
  return list;
}

}  // namespace

DevicePlan device_plan(nb::handle chosen) {
  DevicePlan plan;
  nb::object kernel = chosen.attr("kernel");
  if (!kernel.is_none()) {
    const KernelEntry& entry = loaded_kernel(nb::cast<std::string>(kernel));
    plan.kernel = entry.kernel;
    plan.origin = entry.origin;
  }
  auto layout = [&](const char* name) {
    nb::object value = chosen.attr(name);
    return value.is_none() ? char(0) : nb::cast<std::string>(value)[0];
  };
  plan.pack_a = layout("pack_a");
  plan.pack_b = layout("pack_b");
  plan.pack_scales = nb::cast<bool>(chosen.attr("pack_scales"));
  if (nb::object scratch = chosen.attr("scratch"); !scratch.is_none()) plan.scratch = dtype_from(scratch, "scratch");
  plan.sums = nb::cast<bool>(chosen.attr("sums"));
  plan.splits = nb::cast<int>(chosen.attr("splits"));
  plan.raster = nb::cast<int>(chosen.attr("raster"));
  plan.swizzle = nb::cast<int>(chosen.attr("swizzle"));
  plan.overlap = nb::cast<bool>(chosen.attr("overlap"));
  return plan;
}

Plan plan_from(nb::handle chosen, const Problem& problem) {
  Plan plan{device_plan(chosen), chosen.attr("provided"), nullptr, false};
  if (problem.device.type == DeviceType::cuda) plan.sm_count = device::info(problem.device.id).sm_count;
  const bool divided = nb::cast<bool>(chosen.attr("each"));
  plan.divided = divided && (problem.grouped || problem.pairs);
  if (divided && !plan.divided) plan.each = std::make_shared<const Plan>(plan_for(one_of(problem)));
  return plan;
}

const Plan* known_plan(const Problem& problem) {
  return PlanTable<Plan>::of_operation().known({CUTLASS_PY_GEMM, problem});
}

Plan plan_for(const Problem& problem) {
  return PlanTable<Plan>::of_operation().find({CUTLASS_PY_GEMM, problem},
                                              [&] { return plan_from(selected(nb::cast(problem)), problem); });
}

static void run_each(const Call& list, const Plan& plan, device::Stream stream) {
  Call one = list;
  one.problem = one_of(list.problem);
  for (size_t i = 0; i < list.pointers_d.size(); ++i) {
    one.a.data = list.pointers_a[i], one.b.data = list.pointers_b[i], one.d.data = list.pointers_d[i];
    if (!list.pointers_c.empty()) one.epilogue.c.data = list.pointers_c[i];
    run_by_plan(one, plan, stream);
  }
}

void run_by_plan(const Call& call, const Plan& plan, device::Stream stream, const GivenScratch* given) {
  if (plan.each) {
    run_each(call, *plan.each, stream);
  } else if (!plan.provided.is_none()) {
    run_python_kernel(call, plan, stream);
  } else {
    nb::gil_scoped_release may_wait;  // for room in the stream, behind work that needs the interpreter
    run_on_device(call, plan, stream, given);
  }
}

size_t scratch_bytes(const Call& call, const Plan& plan) {
  return plan.provided.is_none() ? scratch_bytes(call, static_cast<const DevicePlan&>(plan)) : 0;
}

}  // namespace cutlass_py
