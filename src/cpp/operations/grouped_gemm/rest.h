// Zeros where no group is, for callers whose memory is new: a grouped product leaves that as it is.
#pragma once

#include "operations/grouped_gemm/groups.h"
#include "runtime/device.h"

namespace cutlass_py::grouping {

// Queues the zeros of `out`, by numbers on its device; nothing of groups that leave no lines of it.
void clear_rest(const Operand& out, const Groups& groups, const Numbers& numbers, device::Stream stream);

}  // namespace cutlass_py::grouping
