// The fast path of cutlass_py.torch: calls that nothing but autograd has to see, decided without the interpreter.
#pragma once

#include <nanobind/nanobind.h>

#include "operations/gemm/keywords.h"

namespace cutlass_py {

namespace nb = nanobind;

// What of torch the fast path looks at and calls, said once by torch/functions.py.
struct TorchHooks {
  nb::tuple tensor_types;      // types of tensors that mean what their memory holds, exactly
  nb::tuple number_types;      // types of numbers that need not be looked into
  nb::tuple modes;             // functions of how torch dispatches in this thread: whether it may have to see the call
  nb::object function_mode;    // whether functions of torch may be overridden in this thread
  nb::object no_interceptors;  // called where one of these says yes: whether nothing has to see the call after all
  nb::tuple forward_level;     // a dict and the name of a number in it, negative unless derivatives are carried forward
  nb::object autocasting;      // likewise: whether operands of a new result may have to be cast
  nb::object cast;             // (a, b, bias, rank) to what these are cast to, or None where record_layer would be
  nb::object record_layer;     // (a, b, bias, activation, rank): the product with its gradient, or None
};

void set_torch_hooks(TorchHooks hooks);

// gemm(a, b, out=out, bias=bias), recorded where a gradient is asked for; or None where torch may mean something else
// by it, or gemm refuses it. Ranks of a and b have to be `rank`, where that is not 0.
nb::object fast_product(nb::handle a, nb::handle b, nb::handle out, nb::handle bias, int rank);

// gemm(input, weight.t(), bias=bias, activation=activation), likewise.
nb::object fast_linear(nb::handle input, nb::handle weight, nb::handle bias, nb::handle activation);

// gemm of torch tensors, recorded if that is a layer; or None where something has to see it, a gradient is asked of
// anything else, or gemm refuses it; also where autocast may have to cast them, if they are `uncast`.
nb::object fast_gemm(nb::handle a, nb::handle b, const Keywords& keywords, bool uncast);

}  // namespace cutlass_py
