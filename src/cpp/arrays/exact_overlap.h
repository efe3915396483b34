// Overlap that is not decided by ranges and strides: NumPy's exact solver is asked.
#pragma once

#include "arrays/memory_overlap.h"

namespace cutlass_py {

// Refuses the call with the message of the first pair that shares an element.
void check_possible_overlaps(const std::vector<PossibleOverlap>& pairs);

}  // namespace cutlass_py
