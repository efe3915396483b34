// What is told of calls on request (instrumentation.py): log lines, NVTX ranges, and a script that repeats a call that
// failed. Off, it costs one branch.
#pragma once

#include <atomic>
#include <string>

namespace cutlass_py::instrumentation {

// What is asked for, as bits. XLA's calls ask without the GIL.
enum : unsigned { kCalls = 1, kRanges = 2, kFailures = 4, kAnything = 7 };
extern std::atomic<unsigned> wanted;
inline bool asked_for(unsigned bits) { return wanted.load(std::memory_order_relaxed) & bits; }

// Whether this build has NVTX.
bool has_ranges();

// A range of the domain "cutlass_py" for its lifetime, by the name that `name` returns.
class Range {
 public:
  template <class Name>
  explicit Range(Name name) : open_(asked_for(kRanges)) {
    if (open_) push(name());
  }
  ~Range() {
    if (open_) pop();
  }
  Range(const Range&) = delete;

 private:
  static void push(const std::string& name);
  static void pop();
  const bool open_;
};

}  // namespace cutlass_py::instrumentation
