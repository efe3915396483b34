// One gemm call: view the operands, find the launch of its class or canonicalise and plan it, run it. The warm path of
// the package.
#pragma once

#include "operations/gemm/keywords.h"
#include "operations/gemm/plan.h"
#include "runtime/execution.h"
#include "runtime/launch_cache.h"

namespace cutlass_py {

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords);
nb::object gemm(Operands& operands, const Keywords& keywords);  // opened from these keywords; all have memory

void check_devices(const Operands& operands);

// Why a call that takes several products has neither a plan nor scratch of its caller's.
Refusal no_single_plan(const Problem& problem);

// That of the plan table; nothing is tuned for it while the call's stream is captured.
Plan plan_during(const Execution& execution, const Problem& problem);

// One product of many that a call is made of: by the plan of its own class, or by the kernel of that number. It has all
// its memory.
void run_one(const Execution& execution, const Request& request, int32_t kernel = -1);

// Memory for scratch that a caller brings.
class Workspace {
 public:
  // None, or an array of bytes. Refused by name where it is on another device than `a`, or cannot be written.
  void open(nb::handle array, const Operand& a);
  // The memory once the launch's stream is known; null where there is none. `needed` bytes have to fit.
  const GivenScratch* on(device::Stream stream, const Operands& operands, size_t needed);
  explicit operator bool() const { return bool(view_); }

 private:
  View view_;
  GivenScratch given_;
};

// Runs a call by the launch of its class; false, and nothing is done, where that is empty or what is written may
// overlap something. `numbers` as in CachedLaunch::fill.
bool run_cached(const CachedLaunch& known, const Request& request, const CutlassPyScalar* numbers,
                Execution& execution);

// Runs a canonical call by a plan; null: that of the plan table.
void run_call(Execution& execution, Operands& operands, Call& call, const Plan* plan, Workspace& workspace);

// The canonical call of operands that may be TensorSpecs, and whose memory is not looked at.
Call call_of(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords);

// Bytes of scratch that the call takes by a plan (LaunchPlan of launch_plan.py), without running it.
size_t scratch_bytes_of(nb::handle a, nb::handle b, const Keywords& keywords, nb::handle plan, int sm_count);
size_t scratch_bytes_of(const Call& call, nb::handle plan, int sm_count);

}  // namespace cutlass_py
