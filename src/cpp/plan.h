// The plan table: how each class of problem is computed. Filled by cutlass_py.select, once per class.
#pragma once

#include <nanobind/nanobind.h>

#include "kernel.h"
#include "problem.h"

namespace cutlass_py {

namespace nb = nanobind;

struct Plan {
  const CutlassPyKernel* kernel = nullptr;  // null: no product (k = 0, alpha = 0), or `host` computes
  const CutlassPyLibrary* library = nullptr;
  char pack_a = 0, pack_b = 0;  // layout to pack the operand into first, 0 to read it as it lies
  Dtype scratch = Dtype::none;  // dtype of a row-major product that the composed epilogue then finishes
  int splits = 1;               // parts of k whose sums the elementwise kernel joins
  int raster = 0, swizzle = 1;
  bool overlap = false;  // programmatic dependent launch, outside of graph capture
  bool each = false;     // a list of matrices goes one after the other
  int sm_count = 0;
  nb::object host;  // CPU provider: called with the canonical operands
};

// The plan of a problem; asks cutlass_py.select where there is none yet. By value: another thread may clear the table
// whenever Python code runs.
Plan plan_for(const Problem& problem);

// A plan as select.py describes it.
Plan plan_from(nb::handle chosen, const Problem& problem);

// Whether this thread is inside of `with cutlass_py.jit()`, and of `with cutlass_py.autotuning()`.
extern thread_local bool jit_allowed, tuning_allowed;

// Forgets every plan: the next call of each class asks again.
void clear_plans();

}  // namespace cutlass_py
