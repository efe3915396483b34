// A gemm as XLA calls it: the buffers and attributes of a call frame, decoded. Neither Python nor CUDA.
//
// cutlass_py/jax/device.py writes what is read here; both sides change together, with kXlaFormat.
#pragma once

#include <string>

#include "frontends/xla_ffi.h"
#include "operations/gemm/launch_key.h"

namespace cutlass_py {

// The meaning of the attributes. An exported module keeps the one that it was lowered with.
constexpr int64_t kXlaFormat = 2;

struct XlaCall {
  Operand operands[kRoles];  // what `request` and `call` may refer to
  std::string compute;
  Request request;
  Call call;
  std::string kernel;  // by name; empty for none
  DevicePlan plan;     // without kernel, library and multiprocessors, which are the device's
  GivenScratch scratch;
};

// Decodes a frame for a device. Throws what canonicalise throws, and std::invalid_argument where the frame is none of
// ours.
void read(const xla::CallFrame& frame, Device device, XlaCall& x);
// Its halves: all but `call`, which is made of that.
void read_request(const xla::CallFrame& frame, Device device, XlaCall& x);
void make_call(XlaCall& x);

// What its launch is found by: the request and the plan.
Key launch_key(const XlaCall& x);

// The kernel alone, by name; empty for none. Of a frame that may have no buffers.
std::string kernel_of(const xla::CallFrame& frame);

}  // namespace cutlass_py
