// One gemm call: view the operands, canonicalise, find the plan, run it. The warm path of the package.
#pragma once

#include <nanobind/nanobind.h>

#include "problem.h"

namespace cutlass_py {

namespace nb = nanobind;

// The keywords of gemm as Python hands them over; none stands for "not given".
struct Keywords {
  nb::handle out, c, alpha, beta, compute, out_dtype, kernel, stream;
};

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords);

}  // namespace cutlass_py
