// Calls of cutlass_py.torch that go straight to gemm, and the questions that decide so, asked without the interpreter.
#pragma once

#include <nanobind/nanobind.h>

#include "operations/gemm/keywords.h"

namespace cutlass_py {

namespace nb = nanobind;

// What to ask, said once by torch/functions.py.
struct Questions {
  nb::tuple types;         // of tensors that mean what their memory holds, exactly
  nb::tuple numbers;       // types of numbers that need not be looked into
  nb::tuple modes;         // functions of how torch dispatches in this thread: whether it may have to see the call
  nb::object overridden;   // whether functions of torch may be overridden in this thread
  nb::object unseen;       // asked where one of these says yes: whether nothing has to see it after all
  nb::dict forward;        // where torch keeps `_current_level`, negative unless derivatives are carried forward
  nb::object autocasting;  // likewise of how torch dispatches: whether operands of a new result may have to be cast
  nb::object cast;         // (a, b, bias, rank) to what these are cast to, or None where `recorded` would be
  nb::object recorded;     // (a, b, bias, activation, rank): the product with its gradient, or None
};

void set_questions(Questions questions);

// gemm(a, b, out=out, bias=bias), recorded where a gradient is asked for; or None where torch may mean something else
// by it, or gemm refuses it. Ranks of a and b have to be `rank`, where that is not 0.
nb::object straight_product(nb::handle a, nb::handle b, nb::handle out, nb::handle bias, int rank);

// gemm(input, weight.t(), bias=bias, activation=activation), likewise.
nb::object straight_linear(nb::handle input, nb::handle weight, nb::handle bias, nb::handle activation);

// gemm of torch tensors, recorded if that is a layer; or None where something has to see it, a gradient is asked of
// anything else, or gemm refuses it; also where autocast may have to cast them, or if they are not `uncast`, where a or
// b is negated or conjugated lazily: that was not asked before.
nb::object straight_gemm(nb::handle a, nb::handle b, const Keywords& keywords, bool uncast);

}  // namespace cutlass_py
