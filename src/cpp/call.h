// One gemm call: view the operands, canonicalise, find the plan, run it. The warm path of the package.
#pragma once

#include "keywords.h"

namespace cutlass_py {

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords);
nb::object gemm(Operands& operands, const Keywords& keywords);  // opened from these keywords; all have memory

// The canonical call of operands that may be TensorSpecs, and whose memory is not looked at.
Call call_of(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords);

// Bytes of scratch that the call takes by a plan (select.Plan), without running it.
size_t scratch_bytes_of(nb::handle a, nb::handle b, const Keywords& keywords, nb::handle plan, int sm_count);

}  // namespace cutlass_py
