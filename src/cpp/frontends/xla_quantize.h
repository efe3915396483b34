// A quantize as XLA calls it: the buffers and attributes of a call frame become a canonical call and a plan. Neither
// Python nor CUDA.
//
// cutlass_py/jax/quantization.py writes what is read here.
#pragma once

#include <string>

#include "frontends/xla_call.h"
#include "operations/quantize/launch_key.h"
#include "operations/quantize/run.h"

namespace cutlass_py::quantization {

struct XlaQuantize final : XlaCall {
  Operand operands[kRoles];  // what `request` refers to
  Request request;
  Call call;
  LaunchPlan plan;

  const char* operation() const override { return "quantize"; }
  void read(const xla::CallFrame& frame, Device device) override;
  Key key() const override;
  bool fill(const CachedLaunch& known, CachedLaunch::Filled& launch, device::Stream stream) const override;
  void canonicalise() override;
  bool nothing_to_do() const override { return quantization::nothing_to_do(call); }
  LaunchPlan& launch_plan() override { return plan; }
  std::string range_name() const override { return quantization::range_name(call.problem, kernel); }
  void run(device::Stream stream) override { run_on_device(call, plan, stream); }
  CachedLaunch cached_launch() const override { return quantization::cached_launch(call, plan); }
};

}  // namespace cutlass_py::quantization
