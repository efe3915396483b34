// Rows of a by their numbers: row i of the product reads row gather[i]. No kernel finds rows by itself, since the copy
// engine cannot; they are copied first, one behind the other, and the call has that matrix in place of a.
#pragma once

#include <optional>
#include <vector>

#include "operations/grouped_gemm/groups.h"
#include "runtime/execution.h"
#include "runtime/timing.h"

namespace cutlass_py::grouping {

class Gather {
 public:
  // Puts a matrix without memory, row-major and aligned, in place of the request's a. Numbers of host memory are
  // checked. The request's operands live as long as this.
  Gather(Request& request, const Numbers& numbers);
  Gather(const Gather&) = delete;

  const Operand* source() const { return source_; }
  const Operand* numbers() const { return numbers_.array; }

  // Copies, as part of the call, into memory that lives as long as this and is the matrix's from now on.
  const void* run(Execution& execution);

 private:
  void on_host();
  void on_device(device::Stream stream);

  const Operand* source_;
  const Numbers& numbers_;
  Operand matrix_;
  std::vector<int64_t> rows_;  // of host memory
  std::vector<char> host_;
  std::optional<DeviceMemory> device_;
};

}  // namespace cutlass_py::grouping
