#include "straight.h"

#include <utility>

#include "call.h"

namespace cutlass_py {
namespace {

Questions* questions = nullptr;  // guarded by the GIL; lives as long as the process, as torch does

bool ask(nb::handle function) {
  nb::object answer = nb::steal(PyObject_CallNoArgs(function.ptr()));
  const int truth = answer.is_valid() ? PyObject_IsTrue(answer.ptr()) : -1;
  if (truth < 0) nb::raise_python_error();
  return truth;
}

// Called by hand: nanobind takes as long again.
void tell_written(nb::handle tensor) {
  nb::object tensors = nb::steal(PyTuple_Pack(1, tensor.ptr()));
  PyObject* arguments[] = {tensors.ptr()};
  nb::object done = nb::steal(PyObject_Vectorcall(questions->written.ptr(), arguments, 1, nullptr));
  if (!done.is_valid()) nb::raise_python_error();
}

bool any(const nb::tuple& functions) {
  for (nb::handle function : functions) {
    if (ask(function)) return true;
  }
  return false;
}

// Read where torch's own function reads it: called, that takes several times as long.
bool forward_mode() {
  static PyObject* name = PyUnicode_InternFromString("_current_level");
  PyObject* level = PyDict_GetItemWithError(questions->forward.ptr(), name);
  return !level || PyLong_AsLong(level) >= 0;
}

bool is_tensor(nb::handle x) {
  for (nb::handle type : questions->types) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(x.ptr())) == type.ptr()) return true;
  }
  return false;
}

bool wants_gradient(nb::handle x) { return !x.is_none() && requires_grad(x, *array_type(x, "a tensor")); }

bool new_result_is_other(nb::handle a, nb::handle b, nb::handle addend) {
  if (ask(questions->autocasting)) return true;
  return (wants_gradient(a) || wants_gradient(b) || wants_gradient(addend)) && ask(questions->recording);
}

// Whether torch computes what gemm does: operands of one float dtype, of that rank, and batches that are the same.
bool means_the_same(const Operands& operands, int rank) {
  const Operand &a = operands[Role::a]->operand, &b = operands[Role::b]->operand;
  if (rank && (a.rank != rank || b.rank != rank || (rank == 3 && a.shape[0] != b.shape[0]))) return false;
  if (is_integer(a.dtype) || dtype_size(a.dtype) < 2) return false;
  bool same = true;
  operands.each([&](const View& view) { same = same && view.operand.dtype == a.dtype; });
  return same;
}

nb::object gemm_if_the_same(nb::handle a, nb::handle b, nb::handle out, nb::handle bias, int rank) {
  static PyObject* one = PyFloat_FromDouble(1);
  Keywords keywords;
  keywords.out = out, keywords.bias = bias, keywords.alpha = one, keywords.deterministic = Py_False;
  Operands operands;
  open_operands(operands, a, b, keywords);
  return means_the_same(operands, rank) ? gemm(operands, keywords) : nb::none();
}

}  // namespace

void set_questions(Questions asked) {
  delete questions;
  questions = new Questions(std::move(asked));
}

nb::object straight_gemm(nb::handle a, nb::handle b, nb::handle out, nb::handle bias, int rank) {
  const bool plain = questions && is_tensor(a) && is_tensor(b) && (out.is_none() || is_tensor(out)) &&
                     (bias.is_none() || is_tensor(bias));
  if (!plain || forward_mode() || (any(questions->modes) && !ask(questions->unseen))) return nb::none();
  if (out.is_none() && new_result_is_other(a, b, bias)) return nb::none();
  nb::object d = nb::none();
  try {
    d = gemm_if_the_same(a, b, out, bias, rank);
  } catch (const std::invalid_argument&) {  // for torch to resize, resolve, or refuse in its own words
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
  }
  if (!out.is_none() && !d.is_none()) tell_written(out);
  return d;
}

}  // namespace cutlass_py
