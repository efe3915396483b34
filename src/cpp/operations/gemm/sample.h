// Times the plans of a problem, on operands made up for it.
#pragma once

#include <vector>

#include "operations/gemm/plan.h"

namespace cutlass_py {

// As measure (timing.h), the plans being the choices. Groups end where they do in `group_ends`, or where that is empty
// at sizes made up as well.
std::vector<std::vector<float>> measure(const Problem& problem, const std::vector<Plan>& plans, int rounds,
                                        const std::vector<int64_t>& group_ends);

}  // namespace cutlass_py
