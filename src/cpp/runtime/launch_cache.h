// Calls of a class that was seen before, where one launch is all: what is asked leads to the launch itself, in front of
// the canonical form. Pure C++, as that is.
//
// The rule: a launch is found by everything that canonicalise reads of a request, addresses by their alignment alone,
// numbers among the factors by whether they are 0 or 1. What else follows from addresses is overlap, which is looked at
// in each call. Whoever clears the plan table clears these launches.
#pragma once

#include <algorithm>
#include <optional>

#include "operations/gemm/run.h"

namespace cutlass_py {

// A request in words. Empty where none are kept: lists, a user's epilogue, many dimensions.
struct Asked {
  static constexpr int kMost = 64;

  Asked(const Request& request, bool jit);
  Asked(const Asked& other) : count(other.count) { std::copy(other.words, other.words + count, words); }
  explicit operator bool() const { return count; }
  bool operator==(const Asked& other) const;

  int count = 0;
  uint64_t words[kMost];  // not initialised: a call with a, b and out has about 20
};

// The launch of a class; empty where the class takes more than that.
class Ready {
 public:
  Ready(const Call& call, const DevicePlan& plan);
  explicit operator bool() const { return bool(launch_); }
  const Operand& result() const { return result_; }  // the new one of a call without `out`
  const DevicePlan& plan() const { return plan_; }
  // What `launch` takes for a request of the class; `result` is memory of the new one, null if there is none.
  CutlassPyGemm launch_of(const Request& request, device::Stream stream, void* result) const;

 private:
  DevicePlan plan_;
  Operand result_;
  bool transposed_;
  std::optional<CutlassPyGemm> launch_;
};

// Guarded by the GIL. What is found stays until the next of the other two.
const Ready* find_ready(const Asked& asked);  // null where the class was not seen
void keep_ready(const Asked& asked, const Ready& ready);
void forget_ready();

}  // namespace cutlass_py
