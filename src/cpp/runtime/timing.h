// Times the plans of a problem, on operands made up for it.
#pragma once

#include <vector>

#include "runtime/plan_table.h"

namespace cutlass_py {

// Microseconds of a call by plan, one number for each round: `rounds`, or fewer (but one) where they take long. A round
// queues up to eight calls in a row for each plan, whose operands are not in the L2 cache; every other one follows a
// foreign kernel. Plans take turns, so that a clock that falls makes all of them slow. Infinite where a plan cannot
// run, for want of memory for example.
std::vector<std::vector<float>> measure(const Problem& problem, const std::vector<Plan>& plans, int rounds);

}  // namespace cutlass_py
