// What XLA calls: gemm as a custom call of its typed FFI.
#pragma once

#include "xla_ffi.h"

namespace cutlass_py {

// Runs on XLA's stream, from any thread; takes no GIL. Its errors are gemm's.
xla::Error* xla_handler(xla::CallFrame* frame);

}  // namespace cutlass_py
