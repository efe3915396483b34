// Where the address of each operand stands: in a canonical call, and in the launch that is made of it.
#pragma once

#include "abi/kernel.h"
#include "operations/gemm/problem.h"

namespace cutlass_py {

inline const void** slot(Matrix& x) { return x.dtype == Dtype::none ? nullptr : const_cast<const void**>(&x.data); }
inline const void** slot(CutlassPyArray& x) {
  return x.dtype == int32_t(Dtype::none) ? nullptr : const_cast<const void**>(&x.data);
}
inline const void** slot(void*& x) { return const_cast<const void**>(&x); }
inline const void** slot(const void*& x) { return &x; }
template <class Factor>
const void** factor_slot(Factor& x) {
  return x.device ? &x.device : nullptr;
}

// Of a Call or a CutlassPyGemm; null where the operand is not read. `transposed` as in Problem.
template <class AnyCall>
const void** address_slot(AnyCall& call, Role role, bool transposed) {
  auto& e = call.epilogue;
  switch (role) {
    case Role::a: return transposed ? slot(call.b) : slot(call.a);
    case Role::b: return transposed ? slot(call.a) : slot(call.b);
    case Role::c: return slot(e.c);
    case Role::bias: return slot(e.bias);
    case Role::gate: return slot(e.gate);
    case Role::aux: return slot(e.aux);
    case Role::scale_a: return slot(transposed ? e.scale_b : e.scale_a);
    case Role::scale_b: return slot(transposed ? e.scale_a : e.scale_b);
    case Role::alpha: return factor_slot(e.alpha);
    case Role::beta: return factor_slot(e.beta);
    case Role::scale_out: return factor_slot(e.scale_out);
    case Role::bias_grad: return slot(e.bias_grad);
    case Role::out: return slot(call.d);
  }
  return nullptr;
}

}  // namespace cutlass_py
