#include "operations/grouped_gemm/rest.h"

#include "operations/gemm/run.h"

namespace cutlass_py::grouping {

void clear_rest(const Operand& out, const Groups& groups, const Numbers& numbers, device::Stream stream) {
  if (groups.stacked || groups.axis == 'k') return;
  const CutlassPyArray d = Matrix(out.data, out.dtype, out.strides[0], out.strides[1]);
  const CutlassPyGroups told{numbers.array->data, groups.kind, numbers.wide, groups.axis};
  const device::Relaxed relaxed;  // the first launch of an elementwise kernel loads it
  check(elementwise().clear_rest(&d, out.shape[0], out.shape[1], &told, int32_t(groups.count), stream), LaunchPlan(),
        "zeros behind the last group");
}

}  // namespace cutlass_py::grouping
