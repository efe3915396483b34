// An operand that a kernel written in Python works on: a DLPack producer for as long as its run takes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arrays/dlpack_export.h"
#include "runtime/device.h"

namespace cutlass_py {

// Memory of a caller, lent to a kernel until its `run` returns; after that it is handed to nobody. Whoever consumes it
// on another stream than the launch's is made to follow that one.
class BorrowedTensor {
 public:
  BorrowedTensor(Exported tensor, device::Stream launch)
      : tensor_(std::make_shared<Exported>(std::move(tensor))), launch_(launch) {}

  // stream: the consumer's, which is made to follow the launch's; -1 asks for nothing, None is the legacy default
  // stream, as the array API has it. Where none is named, -1 is meant, not None (torch's tensors say the same):
  // operands are lent to be worked on in the launch's stream, and a wait of the legacy stream would end its capture.
  nb::object dlpack(nb::handle stream, nb::handle max_version) const;
  const Exported& tensor() const { return *tensor_; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(lent("address").data); }
  // NumPy's own protocol, of memory of the host; dtypes that NumPy has no name for are bytes ("|V2").
  nb::typed<nb::dict, nb::str, nb::any> array_interface() const;
  void end() { ended_ = true; }

 private:
  const Exported& lent(const char* wanted) const;  // throws where the call is over
  std::shared_ptr<Exported> tensor_;
  device::Stream launch_;
  bool ended_ = false;
};

}  // namespace cutlass_py
