// What is told of calls on request (instrumentation.py): log lines, NVTX ranges, and a script that repeats a call that failed.
// Off, it costs one branch.
#pragma once

#include <atomic>
#include <string>

#include "operations/gemm/keywords.h"
#include "runtime/plan_table.h"

namespace cutlass_py::trace {

// What is asked for, as bits. XLA's calls ask without the GIL.
enum : unsigned { kCalls = 1, kRanges = 2, kFailures = 4, kAnything = 7 };
extern std::atomic<unsigned> wanted;
inline bool asked_for(unsigned bits) { return wanted.load(std::memory_order_relaxed) & bits; }

// Whether this build has NVTX.
bool has_ranges();

// What computes a call, as ranges name it. Of a Plan, takes the GIL to be held.
std::string kernel_of(const DevicePlan& plan);
std::string kernel_of(const Plan& plan);

// A range of the domain "cutlass_py" for its lifetime, named after kernel and problem.
class Range {
 public:
  template <class AnyPlan>
  Range(const Problem& problem, const AnyPlan& plan) : open_(asked_for(kRanges)) {
    if (open_) push(problem, kernel_of(plan));
  }
  ~Range() {
    if (open_) pop();
  }
  Range(const Range&) = delete;

 private:
  static void push(const Problem& problem, const std::string& kernel);
  static void pop();
  const bool open_;
};

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
  if (!asked_for(kAnything)) return run();
  const Range range(call.problem, plan);
  if (asked_for(kCalls)) tell(call.problem, plan, stream);
  if (!asked_for(kFailures)) return run();
  try {
    run();
  } catch (...) {
    fail(operands, call);
  }
}

}  // namespace cutlass_py::trace
