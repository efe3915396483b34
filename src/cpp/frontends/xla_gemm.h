// A gemm as XLA calls it: the buffers and attributes of a call frame become a canonical call and a plan. Neither Python
// nor CUDA.
//
// cutlass_py/jax/device.py writes what is read here.
#pragma once

#include <string>

#include "frontends/xla_call.h"
#include "operations/gemm/launch_key.h"

namespace cutlass_py {

struct XlaGemm : XlaCall {
  Operand operands[kRoles + 1];  // what `request` and `call` may refer to; the last tells groups apart
  std::string compute;
  Request request;
  Call call;
  DevicePlan plan;
  GivenScratch scratch;

  const char* operation() const override { return "gemm"; }
  void read(const xla::CallFrame& frame, Device device) override;
  Key key() const override;
  bool fill(const CachedLaunch& known, CachedLaunch::Filled& launch, device::Stream stream) const override;
  void canonicalise() override;
  bool nothing_to_do() const override { return cutlass_py::nothing_to_do(call.problem); }
  LaunchPlan& launch_plan() override { return plan; }
  std::string range_name() const override { return cutlass_py::range_name(call.problem, kernel_of(plan)); }
  void run(device::Stream stream) override;
  CachedLaunch cached_launch() const override { return cutlass_py::cached_launch(call, plan); }

 protected:
  // Everything; where the call is `grouped`, with an operand of the name of `sizes`, which is returned.
  const Operand* read(const xla::CallFrame& frame, Device device, bool grouped);
  // The key of what was asked, with the plan.
  Key with_plan(Key key) const;
};

}  // namespace cutlass_py
