#include "arrays/exact_overlap.h"

#include <nanobind/stl/string.h>

#include "arrays/dlpack_export.h"

namespace cutlass_py {
namespace {

// An operand as arrays/host.py takes it: (address, dtype, shape, strides in bytes).
nb::tuple host_operand(const Operand& x) {
  return nb::make_tuple(reinterpret_cast<uintptr_t>(x.data), dtype_name(x.dtype), tuple_of(x.shape, x.rank),
                        tuple_of(x.strides, x.rank, dtype_size(x.dtype)));
}

}  // namespace

void check_possible_overlaps(const std::vector<PossibleOverlap>& pairs) {
  if (pairs.empty()) return;
  nb::object shares_memory = nb::module_::import_("cutlass_py.arrays.host").attr("shares_memory");
  for (const PossibleOverlap& pair : pairs) {
    const nb::object shared = shares_memory(host_operand(*pair.other), host_operand(*pair.written));
    if (nb::cast<bool>(shared)) refuse(pair.refusal);
  }
}

}  // namespace cutlass_py
