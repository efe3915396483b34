#include "operations/quantize/launch_key.h"

#include <cstddef>

namespace cutlass_py::quantization {

Key launch_key(const Request& r, bool jit) {
  static_assert(sizeof(Request) == 32, "everything that canonicalise reads of a request is looked at here");
  Key key(CUTLASS_PY_QUANTIZE);
  const Device device = r.at(Role::x)->device;  // that of all operands
  key.put(uint64_t(device.type) << 32 | uint32_t(device.id));
  key.put(uint64_t(r.q) | uint64_t(r.scaling) << 8 | uint64_t(r.transposes) << 16 | uint64_t(jit) << 17);
  for (int i = 0; i < kRoles; ++i) {
    if (r.operands[i] && !put_operand(key, i, *r.operands[i])) return {};
  }
  return key;
}

CachedLaunch cached_launch(const Call& call, const LaunchPlan& plan) {
  if (!plan.kernel) return {};
  CachedLaunch launch(plan, call.problem.device.id, call.arguments);
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) \
  launch.add_address(int(Role::NAME), offsetof(CutlassPyQuantize, SLOT));
#include "quantize_operands.inc"
#undef CUTLASS_PY_OPERAND
  launch.set_result(offsetof(CutlassPyQuantize, q), call.q, 0);
  launch.set_result(offsetof(CutlassPyQuantize, scales), call.made, 1);
  return launch;
}

}  // namespace cutlass_py::quantization
