#include "runtime/plan_table.h"

#include <vector>

#include "runtime/launch_cache.h"

namespace cutlass_py {
namespace {

uint64_t cleared = 0;  // how often

std::vector<void (*)()>& tables() {
  static auto* all = new std::vector<void (*)()>();
  return *all;
}

}  // namespace

thread_local bool jit_allowed = false;
thread_local int tuning_allowed = 0;
thread_local bool batch_invariance_asked = false;

uint64_t plan_table::times_cleared() { return cleared; }
void plan_table::on_clear(void (*clear)()) { tables().push_back(clear); }

void clear_plans() {
  ++cleared;
  for (auto* clear : tables()) clear();
  launch_cache().clear();
  shared_launch_cache().clear();
}

int32_t kernel_id(nb::handle kernel) {
  if (kernel.is_none()) return -1;
  return nb::cast<int32_t>(nb::module_::import_("cutlass_py.kernels.registry").attr("kernel_id")(kernel));
}

nb::object selected(nb::handle problem) {
  return nb::module_::import_("cutlass_py.dispatch.planning").attr("plan")(problem);
}

}  // namespace cutlass_py
