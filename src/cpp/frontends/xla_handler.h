// What XLA calls: operations as custom calls of its typed FFI, and one that learns XLA's stream.
#pragma once

#include "frontends/xla_call.h"

namespace cutlass_py {

// Runs a call, which is new, on XLA's stream, from any thread; takes no GIL. Its errors are the operation's.
xla::Error* handle(const xla::CallFrame& frame, XlaCall& call);

// That of an operation, by the type of its calls.
template <class Call>
xla::Error* xla_handler(xla::CallFrame* frame) {
  Call call;
  return handle(*frame, call);
}

// Remembers which stream a device's computations run on, which XLA tells nobody else.
xla::Error* xla_stream_handler(xla::CallFrame* frame);

// That stream, as the last such call on the device found it; std::out_of_range where there was none.
void* xla_stream(int ordinal);

}  // namespace cutlass_py
