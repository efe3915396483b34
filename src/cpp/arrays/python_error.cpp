#include "arrays/python_error.h"

namespace cutlass_py {
namespace {

nb::object from_errors(const char* name) { return nb::module_::import_("cutlass_py.errors").attr(name); }

}  // namespace

nb::object python_error_of(const ArgumentError& error) {
  const Refusal& x = error.refusal;
  nb::dict fields;
  fields["operation"] = error.operation, fields["operand"] = x.operand.c_str(), fields["found"] = x.found.c_str();
  fields["other"] = x.other.c_str(), fields["other_found"] = x.other_found.c_str(), fields["about"] = x.about;
  fields["expected"] = x.expected.c_str(), fields["hint"] = x.hint.c_str();
  return from_errors(dynamic_cast<const ArgumentTypeError*>(&error) ? "wrong_type" : "wrong_value")(**fields);
}

void raise_from(nb::python_error& cause, const ArgumentError& error) {
  nb::object raised = python_error_of(error);
  PyException_SetCause(raised.ptr(), nb::object(nb::borrow(cause.value())).release().ptr());
  PyException_SetContext(raised.ptr(), nb::object(nb::borrow(cause.value())).release().ptr());
  PyErr_SetObject(raised.type().ptr(), raised.ptr());
  nb::raise_python_error();
}

bool is_argument_error(const nb::python_error& error) { return error.matches(from_errors("ArgumentError")); }

}  // namespace cutlass_py
