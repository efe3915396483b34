// One grouped_gemm call: as gemm's, with what tells groups apart; or group by group, where the host knows them and no
// kernel takes all.
#pragma once

#include "operations/gemm/call.h"
#include "operations/grouped_gemm/groups.h"

namespace cutlass_py::grouping {

// Beside gemm's keywords; None stands for "not given".
struct Asked {
  nb::handle offsets, sizes, gather, expected;
};

nb::object grouped_gemm(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords);

// Bytes of scratch that the call takes by a plan, as gemm's scratch_bytes_of.
size_t scratch_bytes_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords, nb::handle plan,
                        int sm_count);

}  // namespace cutlass_py::grouping
