// One gemm call: view the operands, canonicalise, find the plan, run it. The warm path of the package.
#pragma once

#include "keywords.h"

namespace cutlass_py {

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords);

}  // namespace cutlass_py
