// One gemm call: view the operands, canonicalise, find the plan, run it. The warm path of the package.
#pragma once

#include "operations/gemm/keywords.h"
#include "runtime/launch_cache.h"
#include "runtime/plan_table.h"

namespace cutlass_py {

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords);
nb::object gemm(Operands& operands, const Keywords& keywords);  // opened from these keywords; all have memory

// What a call computes and how: canonicalised anew (gemm), or prepared (prepared.h).
class Source {
 public:
  virtual Call call(Operands& operands) = 0;      // once they are imported
  virtual Plan plan(const Problem& problem) = 0;  // may refuse: asked before anything is allocated

  // Instead of both: the launch that a call is, if that is known. Null where it is not; `keep` is then told of the call
  // once it has run.
  virtual const Ready* ready(Operands&) { return nullptr; }
  virtual void run_ready(device::Stream, void* /*result*/) {}  // `result`: memory of the new one, null if there is none
  virtual void keep(const Call&) {}

 protected:
  ~Source() = default;
};

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

// Runs a call whose operands are open, on the stream that is theirs or the one given; returns `out`, or a new result.
nb::object execute(Operands& operands, Source& source, nb::handle out, nb::handle stream, nb::handle workspace);

// The canonical call of operands that may be TensorSpecs, and whose memory is not looked at.
Call call_of(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords);

// The canonical problem of a call, without running it; operands may be TensorSpecs.
Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords);

// Bytes of scratch that the call takes by a plan (select.Plan), without running it.
size_t scratch_bytes_of(nb::handle a, nb::handle b, const Keywords& keywords, nb::handle plan, int sm_count);

}  // namespace cutlass_py
