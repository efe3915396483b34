// Questions about memory that NumPy answers.
#pragma once

#include "operations/gemm/problem.h"

namespace cutlass_py {

// Decides what canonicalise has left open, by numpy's exact solver.
void check_suspects(const Call& call);

}  // namespace cutlass_py
