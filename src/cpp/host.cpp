#include "host.h"

#include <nanobind/stl/string.h>

#include "dlpack_view.h"

namespace cutlass_py {
namespace {

// An operand as host.py takes it: (address, dtype, shape, strides in bytes).
nb::tuple host_operand(const Operand& x) {
  const int64_t size = dtype_size(x.dtype);
  nb::list shape, strides;
  for (int i = 0; i < x.rank; ++i) shape.append(x.shape[i]), strides.append(x.strides[i] * size);
  return nb::make_tuple(reinterpret_cast<uintptr_t>(x.data), dtype_name(x.dtype), nb::tuple(shape), nb::tuple(strides));
}

}  // namespace

bool shares_memory(const Operand& x, const Operand& y) {
  nb::object shares = nb::module_::import_("cutlass_py.host").attr("shares_memory");
  return nb::cast<bool>(shares(host_operand(x), host_operand(y)));
}

void check_suspects(const Call& call) {
  for (const Suspect& suspect : call.suspects) {  // rare: bytes interleave
    if (shares_memory(*suspect.other, *suspect.written)) throw std::invalid_argument(suspect.message);
  }
}

}  // namespace cutlass_py
