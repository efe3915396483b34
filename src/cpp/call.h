// One gemm call: view the operands, canonicalise, find the plan, run it. The warm path of the package.
#pragma once

#include <nanobind/nanobind.h>

#include "kernel.h"
#include "problem.h"

namespace cutlass_py {

namespace nb = nanobind;

// How one class of problem is computed; made by cutlass_py.select on the first call of the class.
struct Plan {
  const CutlassPyKernel* kernel = nullptr;  // null: no product (k = 0, alpha = 0), or `host` computes
  const CutlassPyLibrary* library = nullptr;
  char pack_a = 0, pack_b = 0;              // layout to pack the operand into first, 0 to read it as it lies
  Dtype scratch = Dtype::none;              // dtype of a row-major product that the composed epilogue then finishes
  int raster = 0, swizzle = 1;
  bool overlap = false;                     // programmatic dependent launch, outside of graph capture
  int sm_count = 0;
  nb::object host;                          // CPU provider: called with the canonical operands
};

// The keywords of gemm as Python hands them over; none stands for "not given".
struct Keywords {
  nb::handle out, c, alpha, beta, compute, out_dtype, kernel, stream;
};

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords);

// Forgets every plan: the next call of each class asks cutlass_py.select again.
void clear_plans();


}  // namespace cutlass_py
