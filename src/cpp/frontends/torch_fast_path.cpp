#include "frontends/torch_fast_path.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "arrays/python_error.h"
#include "arrays/torch_private.h"
#include "operations/gemm/call.h"

namespace cutlass_py {
namespace {

TorchHooks* hooks = nullptr;  // guarded by the GIL; lives as long as the process, as torch does

bool any(const nb::tuple& functions) {
  for (nb::handle function : functions) {
    if (ask(function)) return true;
  }
  return false;
}

// Read where torch's own function reads it: called, that takes several times as long.
bool is_forward_mode() {
  const nb::tuple& level = hooks->forward_level;
  PyObject* value = PyDict_GetItemWithError(level[0].ptr(), level[1].ptr());
  return !value || PyLong_AsLong(value) >= 0;
}

bool is_of(nb::handle x, const nb::tuple& types) {
  for (nb::handle type : types) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(x.ptr())) == type.ptr()) return true;
  }
  return false;
}

bool is_tensor(nb::handle x) { return is_of(x, hooks->tensor_types); }

bool has_modes() {
  thread_local Dispatch answered_no;
  return unless_as(answered_no, [] { return any(hooks->modes); });
}

bool is_autocasting() {
  thread_local Dispatch answered_no;
  return unless_as(answered_no, [] { return ask(hooks->autocasting); });
}

// Whether something beside autograd has to see what is computed in this thread.
bool has_interceptors() {
  return is_forward_mode() || ((has_modes() || ask(hooks->function_mode)) && !ask(hooks->no_interceptors));
}

bool wants_gradient(nb::handle x) { return is_tensor(x) && wants_gradient(x, *array_type(x, "a tensor")); }
bool is_lazy(nb::handle x) { return is_lazy(x, *array_type(x, "a tensor")); }

bool is_one(nb::handle x) {
  if (PyFloat_CheckExact(x.ptr())) return PyFloat_AsDouble(x.ptr()) == 1;
  int overflow = 0;
  return PyLong_CheckExact(x.ptr()) && PyLong_AsLongAndOverflow(x.ptr(), &overflow) == 1;
}

// Whether it is a product with at most a bias and an activation, of no particular kernel or dtype.
bool is_layer(const Keywords& k) {
  for (const Keyword& each : kKeywords) {
    const bool of_layer = each.value == &Keywords::bias || each.value == &Keywords::activation;
    const bool is_none = each.otherwise != Default::none || (k.*each.value).is_none();
    if (!of_layer && !is_none) return false;
  }
  return is_one(k.alpha) && k.deterministic.ptr() == Py_False && k.batch_invariant.ptr() == Py_False;
}

// f(a @ b + bias). Ranks of a and b have to be `rank`, where that is not 0.
struct Layer {
  nb::handle a, b, bias, activation;
  int rank = 0;
  bool turned = false;  // b is (n, k), as torch has the weight of a layer
};

// What the node of a layer computes, and autograd with it; None where it does not know these operands.
nb::object record(const Layer& l) {
  for (nb::handle x : {l.a, l.b, l.bias}) {
    if (!x.is_none() && is_lazy(x)) return nb::none();
  }
  return hooks->record_layer(l.a, l.b, l.bias, l.activation, l.rank);
}

// What `run` returns; None where gemm refuses it.
template <class Run>
nb::object or_none(Run run) {
  try {
    return run();
  } catch (const ArgumentError&) {
  } catch (const nb::python_error& error) {
    if (!is_argument_error(error)) throw;  // that of a hook, say
  }
  return nb::none();
}

// Whether torch computes what gemm does: operands of one float dtype, of that rank, and batches that are the same.
bool means_the_same(const Operands& operands, const Layer& l) {
  const Operand &a = operands[Role::a]->operand, &b = operands[Role::b]->operand;
  if (l.rank && (a.rank != l.rank || b.rank != l.rank || (l.rank == 3 && a.shape[0] != b.shape[0]))) return false;
  if (l.turned && b.rank != 2) return false;
  if (is_integer(a.dtype) || dtype_size(a.dtype) < 2) return false;
  bool same = true;
  operands.each([&](const View& view) { same = same && view.operand.dtype == a.dtype; });
  return same;
}

nb::object gemm_if_the_same(const Layer& l, nb::handle out) {
  static PyObject* one = PyFloat_FromDouble(1);
  Keywords keywords;
  keywords.out = out, keywords.bias = l.bias, keywords.activation = l.activation;
  keywords.alpha = one, keywords.deterministic = keywords.batch_invariant = Py_False;
  Operands operands;
  open_operands(operands, l.a, l.b, keywords);
  if (!means_the_same(operands, l)) return nb::none();
  if (l.turned) {
    Operand& b = operands[Role::b]->operand;
    std::swap(b.shape[0], b.shape[1]), std::swap(b.strides[0], b.strides[1]);
  }
  return gemm(operands, keywords);
}

// As fast_product and fast_linear say.
nb::object fast_layer(Layer l, nb::handle out) {
  const bool plain = hooks && is_tensor(l.a) && is_tensor(l.b) && (out.is_none() || is_tensor(out)) &&
                     (l.bias.is_none() || is_tensor(l.bias));
  if (!plain || has_interceptors()) return nb::none();
  const bool casts = out.is_none() && is_autocasting();
  const bool recorded = out.is_none() && (wants_gradient(l.a) || wants_gradient(l.b) || wants_gradient(l.bias));
  nb::object view;
  if (l.turned && (casts || recorded)) {
    if (nb::cast<int>(l.b.attr("dim")()) != 2) return nb::none();
    view = l.b.attr("t")();  // not the parameter itself: what is kept of that for a backward pass follows its `.data`
    l.b = view, l.turned = false;
  }
  nb::tuple cast;  // holds them
  if (casts) {
    nb::object found = hooks->cast(l.a, l.b, l.bias, l.rank);
    if (found.is_none()) return found;
    cast = nb::cast<nb::tuple>(found);
    l.a = cast[0], l.b = cast[1], l.bias = cast[2];
  }
  return or_none([&] { return recorded ? record(l) : gemm_if_the_same(l, out); });
}

}  // namespace

void set_torch_hooks(TorchHooks given) {
  delete hooks;
  hooks = new TorchHooks(std::move(given));
}

nb::object fast_product(nb::handle a, nb::handle b, nb::handle out, nb::handle bias, int rank) {
  return fast_layer({a, b, bias, Py_None, rank}, out);
}

nb::object fast_linear(nb::handle input, nb::handle weight, nb::handle bias, nb::handle activation) {
  return fast_layer({input, weight, bias, activation, 0, true}, Py_None);
}

nb::object fast_gemm(nb::handle a, nb::handle b, const Keywords& k, bool uncast) {
  if (!hooks || !is_tensor(a) || !is_tensor(b)) return nb::none();
  bool gradient = wants_gradient(a) || wants_gradient(b);
  for (const ArrayKeyword& each : kArrayKeywords) {
    const nb::handle value = k.*each.value;
    if (!value.is_none() && !is_tensor(value) && !is_of(value, hooks->number_types)) return nb::none();
    gradient = gradient || wants_gradient(value);
  }
  if (has_interceptors()) return nb::none();
  if (uncast && k.out.is_none() && is_autocasting()) return nb::none();
  if (gradient && !is_layer(k)) return nb::none();
  return or_none([&] { return gradient ? record({a, b, k.bias, k.activation}) : gemm(a, b, k); });
}

}  // namespace cutlass_py
