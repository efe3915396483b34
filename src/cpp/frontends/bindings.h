// The parts that the extension module is bound in.
#pragma once

#include <nanobind/nanobind.h>

#include "abi/kernel.h"

namespace cutlass_py {

namespace nb = nanobind;

using Facts = nb::typed<nb::dict, nb::str, nb::any>;

void bind_arrays(nb::module_& m);
void bind_estimate(nb::module_& m);  // of products, by wgmma kernels
void bind_routes(nb::module_& m);    // after that

// Of each operation: what the extension has of it, and what a kernel says of itself.
#define CUTLASS_PY_OPERATION(NAME)  \
  void bind_##NAME(nb::module_& m); \
  Facts NAME##_facts(const CutlassPyKernel& kernel);
#include "operations.inc"
#undef CUTLASS_PY_OPERATION

}  // namespace cutlass_py
