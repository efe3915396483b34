// Operands of a product as tests of its canonical form make them, without memory behind them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "operations/gemm/problem.h"

namespace cutlass_py {

using Extents = std::vector<int64_t>;

// An operand over memory that is never followed (f32, row-major) unless told otherwise.
inline Operand operand(const char* name, Extents shape, Extents strides = {}, uintptr_t address = 0,
                       Dtype dtype = Dtype::f32) {
  Operand x;
  x.name = name;
  x.dtype = dtype;
  // Far apart by default, so that nothing overlaps.
  x.data = reinterpret_cast<void*>(address ? address : (uintptr_t(name[0]) << 32));
  x.set_row_major(shape.data(), int(shape.size()));
  std::copy(strides.begin(), strides.end(), x.strides);
  return x;
}

// canonicalise with the operands that a plain product has.
inline Call canonicalise(const Operand& a, const Operand& b, const Operand* c, const Operand* out, Request request) {
  request.operands[int(Role::a)] = &a, request.operands[int(Role::b)] = &b;
  request.operands[int(Role::c)] = c, request.operands[int(Role::out)] = out;
  return cutlass_py::canonicalise(request);
}

}  // namespace cutlass_py
