// The CPU side of a call: operands as Python tuples, and the provider that computes them.
#pragma once

#include "plan.h"

namespace cutlass_py {

// Hands the call to the plan's Python provider, as host.py's HostCall.
void run_on_host(const Call& call, const Plan& plan);

// Whether two operands, whose bytes interleave, share an element; numpy's exact solver decides.
bool shares_memory(const Operand& x, const Operand& y);

// Decides what canonicalise has left open.
void check_suspects(const Call& call);

}  // namespace cutlass_py
