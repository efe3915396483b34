// One call while it runs, whatever it computes: the device, the streams that it is ordered with, its operands' memory,
// and a new result of the caller's kind.
#pragma once

#include <optional>

#include "arrays/operand_views.h"
#include "runtime/streams.h"

namespace cutlass_py {

class Execution {
 public:
  // Operands are open and on one device. `like`: whose framework makes a new result; `out`: what is written and
  // returned, null for a new one; `stream`: as asked for.
  Execution(OperandViews& operands, const View& like, const View* out, nb::handle stream);

  bool on_host() const { return !streams_; }
  device::Stream stream() const { return streams_ ? streams_->launch : nullptr; }
  bool capturing() const { return streams_ && streams_->capturing(); }
  bool makes_result() const { return makes_result_; }

  // Makes the new array, and says where it lies. That of lists is one array, handed out in slices.
  void* new_result(const Operand& made);

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

  // `out`, or the new array. Frameworks are told what was written.
  nb::object finish(nb::handle out);

 private:
  bool make_by_exchange(const ArrayType& type, const Operand& x);
  void make_by_row(const Operand& x);
  void order_after();

  OperandViews& operands_;
  const View& like_;
  const bool makes_result_;
  std::optional<device::Guard> guard_;
  std::optional<Streams> streams_;  // on a device
  nb::object array_;                // the new result
  void* data_ = nullptr;
  nb::object row_;              // finishes the array, where the framework's row made it
  View view_;                   // of that array
  bool on_own_stream_ = false;  // a Buffer: ordered by this package's stream
};

}  // namespace cutlass_py
