// What is told of a gemm: to the log, as the name of a range, and to the script that repeats it (instrumentation.h).
#pragma once

#include <string>

#include "operations/gemm/keywords.h"
#include "operations/gemm/plan.h"
#include "runtime/instrumentation.h"

namespace cutlass_py {

// As that of a DevicePlan. Takes the GIL to be held.
std::string kernel_of(const Plan& plan);

// What instrumentation.py says of a call before it runs.
void tell(const Problem& problem, const Plan& plan, device::Stream stream);

// Rethrows what is being handled, with the file that repeats the call in its message where one could be written.
[[noreturn]] void fail(const Operands& operands, const Call& call);

// Operands and factors of a call as reproducer.py takes them. Lists go matrix by matrix ("a[0]").
nb::dict facts(const Operands& operands, const Call& call);
nb::dict facts(nb::handle a, nb::handle b, const Keywords& keywords);

// Runs a call that was checked and planned.
template <class Run>
void watched(const Operands& operands, const Call& call, const Plan& plan, device::Stream stream, Run run) {
  using namespace instrumentation;
  if (!asked_for(kAnything)) return run();
  const instrumentation::Range range([&] { return range_name(call.problem, kernel_of(plan)); });
  if (asked_for(kCalls)) tell(call.problem, plan, stream);
  if (!asked_for(kFailures)) return run();
  try {
    run();
  } catch (...) {
    fail(operands, call);
  }
}

}  // namespace cutlass_py
