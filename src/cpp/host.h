// Questions about memory that NumPy answers.
#pragma once

#include "problem.h"

namespace cutlass_py {

// Whether two operands, whose bytes interleave, share an element; numpy's exact solver decides.
bool shares_memory(const Operand& x, const Operand& y);

}  // namespace cutlass_py
