// Operands that are not arrays: a tensor described without memory, and an array under another dtype.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "arrays/operand.h"

namespace cutlass_py {

// Shape, strides (elements), dtype, device and base alignment of a tensor that need not exist.
struct TensorSpec {
  std::vector<int64_t> shape, strides;
  Dtype dtype = Dtype::none;
  Device device;
  int64_t alignment = 256;  // bytes

  Operand operand(const char* name) const {
    Operand x;
    x.name = name;
    x.dtype = dtype;
    x.device = device;
    x.rank = int(shape.size());
    for (int i = 0; i < x.rank; ++i) x.shape[i] = shape[i], x.strides[i] = strides[i];
    x.data = reinterpret_cast<void*>(alignment);
    x.metadata_only = true;
    return x;
  }
};

// An array whose framework cannot name its dtype: bytes of the right size, and what they mean.
struct TypedView {
  nanobind::object array;
  Dtype dtype = Dtype::none;

  template <class Visit>
  void held(Visit visit) const {
    visit(array);
  }
};

}  // namespace cutlass_py
