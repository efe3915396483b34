// What XLA calls: gemm as a custom call of its typed FFI, and one that learns XLA's stream.
#pragma once

#include "frontends/xla_ffi.h"

namespace cutlass_py {

// Runs on XLA's stream, from any thread; takes no GIL. Its errors are gemm's.
xla::Error* xla_handler(xla::CallFrame* frame);

// Remembers which stream a device's computations run on, which XLA tells nobody else.
xla::Error* xla_stream_handler(xla::CallFrame* frame);

// That stream, as the last such call on the device found it; std::out_of_range where there was none.
void* xla_stream(int ordinal);

}  // namespace cutlass_py
