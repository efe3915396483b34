// One quantize call: view the operands, find the launch of its class or canonicalise and plan it, run it.
#pragma once

#include "operations/quantize/plan.h"

namespace cutlass_py::quantization {

// As Python hands them over; None stands for "not given".
struct Keywords {
#define CUTLASS_PY_KEYWORD(NAME, DEFAULT, ROLE) nb::handle NAME = Py_None;
#include "quantize_keywords.inc"
#undef CUTLASS_PY_KEYWORD
};

nb::tuple quantize(nb::handle x, const Keywords& keywords);  // (q, scales)

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle x, const Keywords& keywords);

}  // namespace cutlass_py::quantization
