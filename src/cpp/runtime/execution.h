// One call while it runs, whatever it computes: the device, the streams that it is ordered with, its operands' memory,
// and new results of the caller's kind.
#pragma once

#include <array>
#include <cstdint>
#include <new>
#include <optional>
#include <vector>

#include "arrays/operand_views.h"
#include "runtime/streams.h"

namespace cutlass_py {

class Execution {
 public:
  static constexpr int kMostResults = 2;

  // Operands are open and on one device. `like`: whose framework makes new results; `leads`: what is written and
  // returned, by whose framework the call is ordered first, null where that is new; `stream`: as asked for.
  Execution(OperandViews& operands, const View& like, const View* leads, nb::handle stream);
  ~Execution();
  Execution(const Execution&) = delete;

  bool on_host() const { return !streams_; }
  device::Stream stream() const { return streams_ ? streams_->launch : nullptr; }
  bool capturing() const { return streams_ && streams_->capturing(); }

  // Makes a new array, and says where it lies. That of lists is one array, handed out in slices; where it has matrices,
  // in those, whose data is how far they lie from its first byte.
  void* new_result(const Operand& made, int index = 0);

  // Queues the call behind what it has to follow, and orders with it what comes next, even where it failed: what was
  // queued before that runs.
  template <class Queue>
  void run(Queue queue) {
    if (!streams_) return queue();
    streams_->before();
    try {
      queue();
    } catch (...) {
      try {
        order_after();
      } catch (const CudaError&) {  // the first error says more
      }
      throw;
    }
    order_after();
  }

  // The call has written what it writes: frameworks are told.
  void finish() { operands_.tell_written(); }
  // What a caller receives: the array that was given for a result, or the new one.
  nb::object result(nb::handle given, int index = 0) {
    return made(index) ? finished(*made(index)) : nb::borrow(given);
  }
  // Of a call with one result.
  nb::object finish(nb::handle given) {
    nb::object received = result(given);
    finish();
    return received;
  }

 private:
  struct NewArray {
    nb::object array;
    nb::object row;  // finishes it, where the framework's row made it
    View view;       // of it, until then
  };
  NewArray* made(int index) {
    return made_ >> index & 1 ? std::launder(reinterpret_cast<NewArray*>(arrays_) + index) : nullptr;
  }
  nb::object finished(NewArray& made);
  void* make_by_exchange(NewArray& made, const ArrayType& type, const Operand& x);
  void* make_by_row(NewArray& made, const Operand& x);
  void order_after();

  OperandViews& operands_;
  const View& like_;
  std::optional<device::Guard> guard_;
  std::optional<Streams> streams_;              // on a device
  std::vector<std::array<int64_t, 3>> pieces_;  // of such an array: the first element, rows and columns
  uint8_t made_ = 0;                            // bits: which results are new
  alignas(NewArray) unsigned char arrays_[kMostResults * sizeof(NewArray)];  // not initialised: most calls make one
  bool on_own_stream_ = false;  // a Buffer is among them: ordered by this package's stream
};

}  // namespace cutlass_py
