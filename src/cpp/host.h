// Questions about memory that NumPy answers.
#pragma once

#include "problem.h"

namespace cutlass_py {

// Whether two operands, whose bytes interleave, share an element; numpy's exact solver decides.
bool shares_memory(const Operand& x, const Operand& y);

// Decides what canonicalise has left open.
void check_suspects(const Call& call);

}  // namespace cutlass_py
