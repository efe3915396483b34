// The order of a launch among the streams of the frameworks that own its operands.
#pragma once

#include "arrays/operand_views.h"
#include "runtime/device.h"

namespace cutlass_py {

// Which stream a call runs on, and which other streams it is ordered with.
struct Streams {
  device::Stream launch = nullptr;
  bool given = false;       // by stream=
  bool streamless = false;  // an operand's framework has no current stream (JAX)
  struct Other {
    const void* framework;
    device::Stream stream;
  } others[8];  // more frameworks in one call are refused
  int other_count = 0;

  // `leads`: the operand whose framework receives the result; null where there is none.
  Streams(const OperandViews& operands, const View* leads, int device_id, nb::handle requested);

  // Whether the call has to be ordered with any stream but the one it runs on.
  bool several() const;
  // Whether any of them is being captured into a graph.
  bool capturing() const;

  // The launch follows what the operands' frameworks have queued. (__dlpack__ does this itself; the exchange API not.)
  void before() const;
  // What the frameworks queue next, reuse of the operands' memory included, follows the launch. With stream= that order
  // is the caller's, as with any explicit stream: joining them here would serialise side streams.
  void after() const;

 private:
  void visit(const View& view, int device_id, bool& chosen);
  bool seen(const void* framework) const;
};

// device::wait without the GIL: it may wait itself, for room in a stream behind work that needs the interpreter.
void follow(device::Stream waiter, device::Stream signaler);

// A CUDA stream given as an int, by the __cuda_stream__ protocol, or as torch's or CuPy's object.
device::Stream stream_from(nb::handle value);

// Keeps the operands of frameworks without a current stream until the device has passed what is queued on `stream`:
// their memory may be reused as soon as it is released.
void release_when_done(OperandViews& operands, device::Stream stream);

}  // namespace cutlass_py
