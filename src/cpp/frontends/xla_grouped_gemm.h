// A grouped product as XLA calls it: gemm's call with what tells groups apart, which lies on the device. Lines that
// belong to no group are zeros, for XLA's results are new memory.
//
// cutlass_py/jax/grouped.py writes what is read here.
#pragma once

#include "frontends/xla_gemm.h"
#include "operations/grouped_gemm/groups.h"

namespace cutlass_py::grouping {

struct XlaGroupedGemm final : XlaGemm {
  Numbers numbers;  // sizes
  Groups groups;

  const char* operation() const override { return "grouped_gemm"; }
  void read(const xla::CallFrame& frame, Device device) override;
  Key key() const override;
  bool fill(const CachedLaunch& known, CachedLaunch::Filled& launch, device::Stream stream) const override;
  void canonicalise() override;
  bool nothing_to_do() const override;
  void run(device::Stream stream) override;
  CachedLaunch cached_launch() const override;
  void finish(device::Stream stream) const override;
};

}  // namespace cutlass_py::grouping
