// Refusals as Python's exceptions (errors.py): the edge at which they are handed over.
#pragma once

#include <nanobind/nanobind.h>

#include "arrays/refusal.h"

namespace cutlass_py {

namespace nb = nanobind;

// An ArgumentValueError or ArgumentTypeError with the same values.
nb::object python_error_of(const ArgumentError& error);

// Raises it, with what Python raised before as its cause.
[[noreturn]] void raise_from(nb::python_error& cause, const ArgumentError& error);

// Whether Python raised one.
bool is_argument_error(const nb::python_error& error);

// The extension's part of errors.py, and refusals that leave any of its functions.
void bind_errors(nb::module_& m);

}  // namespace cutlass_py
