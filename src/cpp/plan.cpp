#include "plan.h"

#include <nanobind/stl/string.h>

#include <unordered_map>

#include "device.h"
#include "dlpack_view.h"
#include "registry.h"

namespace cutlass_py {
namespace {

std::unordered_map<Problem, Plan, ProblemHash>& plans() {
  static auto* table = new std::unordered_map<Problem, Plan, ProblemHash>();
  return *table;
}

// A program with ever new shapes must not grow without bound.
constexpr size_t kMostPlans = 1 << 16;

}  // namespace

thread_local bool jit_allowed = false;
thread_local bool tuning_allowed = false;

DevicePlan device_plan(nb::handle chosen) {
  DevicePlan plan;
  nb::object kernel = chosen.attr("kernel");
  if (!kernel.is_none()) {
    const KernelEntry* entry = find_kernel(nb::cast<std::string>(kernel));
    if (!entry) throw std::runtime_error("gemm: kernel " + nb::cast<std::string>(kernel) + " is not loaded");
    plan.kernel = entry->kernel;
    plan.library = entry->library;
  }
  auto layout = [&](const char* name) {
    nb::object value = chosen.attr(name);
    return value.is_none() ? char(0) : nb::cast<std::string>(value)[0];
  };
  plan.pack_a = layout("pack_a");
  plan.pack_b = layout("pack_b");
  if (nb::object scratch = chosen.attr("scratch"); !scratch.is_none()) plan.scratch = dtype_from(scratch, "scratch");
  plan.splits = nb::cast<int>(chosen.attr("splits"));
  plan.each = nb::cast<bool>(chosen.attr("each"));
  plan.raster = nb::cast<int>(chosen.attr("raster"));
  plan.swizzle = nb::cast<int>(chosen.attr("swizzle"));
  plan.overlap = nb::cast<bool>(chosen.attr("overlap"));
  return plan;
}

Plan plan_from(nb::handle chosen, const Problem& problem) {
  Plan plan{device_plan(chosen), chosen.attr("provided")};
  if (problem.device.type == DeviceType::cuda) plan.sm_count = device::info(problem.device.id).sm_count;
  return plan;
}

Plan plan_for(const Problem& problem) {
  auto& table = plans();
  if (auto found = table.find(problem); found != table.end()) return found->second;
  nb::object chosen = nb::module_::import_("cutlass_py.select").attr("plan")(nb::cast(problem));
  Plan plan = plan_from(chosen, problem);
  if (table.size() >= kMostPlans) table.clear();
  return table[problem] = plan;
}

void clear_plans() { plans().clear(); }

}  // namespace cutlass_py
