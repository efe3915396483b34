#include "arrays/python_error.h"

#include <nanobind/stl/string.h>

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

void bind_errors(nb::module_& m) {
  using namespace nb::literals;
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const ArgumentError& wrong) {
      nb::object raised = python_error_of(wrong);
      PyErr_SetObject(raised.type().ptr(), raised.ptr());
    }
  });
  m.def("current_operation", &current_operation, "The operation that errors of this thread begin with.");
  m.def(
      "error_text",
      [](const std::string& operation, const std::string& operand, const std::string& found, const std::string& other,
         const std::string& other_found, const std::string& expected, const std::string& hint) {
        const Refusal second(other, other_found);
        return text_of(Refusal(operand, found).but(second).expects(expected).hints(hint), operation);
      },
      "operation"_a, "operand"_a, "found"_a, "other"_a, "other_found"_a, "expected"_a, "hint"_a,
      "The sentence of an ArgumentError.");
}

}  // namespace cutlass_py
