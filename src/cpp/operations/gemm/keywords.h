// The keywords of gemm: which of them may be arrays, and what the others say in numbers, names and switches.
#pragma once

#include <nanobind/nanobind.h>

#include "operations/gemm/operands.h"

namespace cutlass_py {

namespace nb = nanobind;

// As Python hands them over; None stands for "not given".
struct Keywords {
  nb::handle out = Py_None, c = Py_None, alpha = Py_None, beta = Py_None, bias = Py_None, activation = Py_None,
             aux = Py_None, gate = Py_None, scale_a = Py_None, scale_b = Py_None, scale_out = Py_None,
             bias_grad = Py_None, epilogue = Py_None, compute = Py_None, out_dtype = Py_None, splits = Py_None,
             deterministic = Py_None, kernel = Py_None, stream = Py_None;
};

// The keywords that may be arrays, in the order in which these are opened.
struct ArrayKeyword {
  Role role;
  nb::handle Keywords::* value;
  bool or_number = false;
};
inline constexpr ArrayKeyword kArrayKeywords[] = {
    {Role::c, &Keywords::c},
    {Role::bias, &Keywords::bias},
    {Role::gate, &Keywords::gate},
    {Role::aux, &Keywords::aux},
    {Role::scale_a, &Keywords::scale_a, true},
    {Role::scale_b, &Keywords::scale_b, true},
    {Role::alpha, &Keywords::alpha, true},
    {Role::beta, &Keywords::beta, true},
    {Role::scale_out, &Keywords::scale_out, true},
    {Role::bias_grad, &Keywords::bias_grad},
    {Role::out, &Keywords::out},
};

// What a user's epilogue returns when it is called: its program (user_epilogue.h), and what was given for each
// parameter and output.
struct EpilogueCall {
  int32_t program;
  nb::tuple values;

  template <class Visit>
  void held(Visit visit) const {
    visit(values);
  }
};

// By name. What the dictionary lacks is as gemm has it by default.
Keywords keywords_from(const nb::dict& given);

// Opens every array among the operands and keywords. Destinations must be mutable, and are marked as written.
void open_operands(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords);

// Everything else, and the operands by role; these are complete by now. Whether aux is written is known from here on.
Request request_from(Operands& operands, const Keywords& keywords);

// The kernel asked for, as registry.py numbers it; -1 for None.
int32_t kernel_number(nb::handle kernel);

}  // namespace cutlass_py
