// The parts that the extension module is bound in.
#pragma once

#include <nanobind/nanobind.h>

#include "abi/kernel.h"

namespace cutlass_py {

namespace nb = nanobind;

using Facts = nb::typed<nb::dict, nb::str, nb::any>;

void bind_arrays(nb::module_& m);
void bind_gemm(nb::module_& m);

// What a kernel says of itself, by its operation.
Facts gemm_facts(const CutlassPyKernel& kernel);

}  // namespace cutlass_py
