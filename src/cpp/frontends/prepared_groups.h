// A grouped_gemm call that is planned once: each further one makes the same problem, and runs.
#pragma once

#include "frontends/prepared.h"
#include "operations/grouped_gemm/call.h"

namespace cutlass_py {

class PreparedGroups {
 public:
  // Operands and keywords as GroupedArguments holds them, `groups` and gemm's, with `kernel` among these. Operands may
  // be TensorSpecs. `raster` and `swizzle` as in kernel.h; 0: as chosen.
  PreparedGroups(nb::object a, nb::object b, const nb::dict& groups, const nb::dict& keywords, int raster, int swizzle);

  // Runs it. What is None is what it was prepared with; of the keywords only arrays are looked at.
  nb::object operator()(nb::handle a, nb::handle b, const grouping::Asked& asked, const Keywords& given,
                        nb::handle workspace) const;

  const Problem& problem() const { return planned_.problem; }
  std::string repr() const { return prepared_repr(grouping::described(problem()), plan_); }

  template <class Visit>
  void held(Visit visit) const {
    visit(a_), visit(b_), visit(groups_), visit(kept_), visit(plan_.provided);
  }

 private:
  nb::object a_, b_;
  nb::tuple groups_, kept_;  // own what these refer to
  grouping::Asked asked_;
  Keywords keywords_;
  grouping::Planned planned_;
  Plan plan_;
};

}  // namespace cutlass_py
