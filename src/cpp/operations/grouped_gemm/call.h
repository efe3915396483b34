// One grouped_gemm call: as gemm's, with what tells groups apart; or group by group, where the host knows them and no
// kernel takes all.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "operations/gemm/call.h"
#include "operations/grouped_gemm/groups.h"

namespace cutlass_py::grouping {

// Beside gemm's keywords; None stands for "not given".
struct Asked {
  nb::handle offsets, sizes, gather, expected;
};

// A problem and the plan that was settled for it, with scratch of the caller's or None.
struct Settled {
  const Problem& problem;
  const Plan& plan;
  nb::handle workspace;
};

// `settled`: refused unless it is of the same problem; null where the plan table says how.
nb::object grouped_gemm(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords,
                        const Settled* settled = nullptr);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords);

// Likewise, and which of its operands are arrays.
struct Planned {
  Problem problem;
  std::array<bool, kRoles> arrays{};
};
Planned planned_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords);

// Where the groups of such a call end, from memory of the host or the device, checked; empty of TensorSpecs.
std::vector<int64_t> ends_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords);

std::string described(const Problem& problem);

// Bytes of scratch that the call takes by a plan, as gemm's scratch_bytes_of.
size_t scratch_bytes_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords, nb::handle plan,
                        int sm_count);

}  // namespace cutlass_py::grouping
