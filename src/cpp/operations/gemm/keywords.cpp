#include "operations/gemm/keywords.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "arrays/metadata.h"
#include "operations/gemm/canonical.h"
#include "operations/gemm/user_epilogue.h"
#include "runtime/plan_table.h"

namespace cutlass_py {
namespace {

std::string type_of(nb::handle value) {
  return nb::cast<std::string>(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr()))).attr("__name__"));
}

// ------------------------------------------------------------------------------------------------ numbers

bool is_array(nb::handle value) {
  if (PyFloat_CheckExact(value.ptr()) || PyLong_CheckExact(value.ptr())) return false;
  return known_array_type(value) || nb::hasattr(value, "__dlpack__") || nb::isinstance<TensorSpec>(value) ||
         nb::isinstance<TypedView>(value);
}

[[noreturn]] void refuse_number(nb::handle value, const char* name) {
  const auto raised = [](PyObject* type) { return PyErr_Occurred() && PyErr_ExceptionMatches(type); };
  const bool overflow = raised(PyExc_OverflowError);
  if (PyErr_Occurred() && !overflow && !raised(PyExc_TypeError) && !raised(PyExc_ValueError)) nb::raise_python_error();
  PyErr_Clear();
  if (overflow) refuse(Refusal(name, "is too large for a float"));
  refuse_type(Refusal(name, "is " + described_type(value)).expects("a number"));
}

double real_number(nb::handle value, const char* name) {
  // NumPy's complex scalars would convert, and lose a part.
  if (!PyFloat_CheckExact(value.ptr()) && type_of(value).rfind("complex", 0) == 0) refuse_number(value, name);
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred()) refuse_number(value, name);
  return number;
}

CutlassPyScalar complex_number(nb::handle value, const char* name) {
  if (PyUnicode_Check(value.ptr())) refuse_number(value, name);  // complex() would read it
  nb::object number = nb::steal(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PyComplex_Type), value.ptr(),
                                                             static_cast<PyObject*>(nullptr)));
  if (!number.is_valid()) refuse_number(value, name);
  return {PyComplex_RealAsDouble(number.ptr()), PyComplex_ImagAsDouble(number.ptr()), nullptr};
}

// A factor that is no array.
CutlassPyScalar scalar_from(nb::handle value, const char* name, bool complex) {
  if (PyFloat_CheckExact(value.ptr())) return {PyFloat_AsDouble(value.ptr()), 0, nullptr};
  return complex ? complex_number(value, name) : CutlassPyScalar{real_number(value, name), 0, nullptr};
}

void read_factors(const Operands& operands, const Keywords& keywords, Request& r) {
  const bool complex = is_complex(operands[Role::a]->operand.dtype);
  if (!operands[Role::alpha]) r.alpha = scalar_from(keywords.alpha, "alpha", complex);
  r.has_beta = !keywords.beta.is_none();
  if (r.has_beta && !operands[Role::beta]) r.beta = scalar_from(keywords.beta, "beta", complex);
  auto scale = [&](Role role, nb::handle value, const char* name, double& number) {
    if (value.is_none() || operands[role]) return false;
    number = real_number(value, name);
    return true;
  };
  r.has_scale_a = scale(Role::scale_a, keywords.scale_a, "scale_a", r.scale_a);
  r.has_scale_b = scale(Role::scale_b, keywords.scale_b, "scale_b", r.scale_b);
  r.has_scale_out = scale(Role::scale_out, keywords.scale_out, "scale_out", r.scale_out.value);
}

// ------------------------------------------------------------------------------------------------ names

const char* text_from(nb::handle value, const char* name, const char* example) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
  if (text && std::strlen(text) == size_t(length)) return text;
  PyErr_Clear();  // lone surrogates; a NUL would end the name early
  refuse(Refusal(name, "is no valid text").expects(std::string("a name such as ") + example));
}

bool needs_parameters(const ActivationRow& row) {
  return row.parameter_count && (std::isnan(row.defaults[0]) || std::isnan(row.defaults[1]));
}

int activation_number(const char* name) {
  if (const int found = activation_named(name); found >= 0) return found;
  std::string known;
  for (int i = 0; i < kActivationCount; ++i) {
    if (!needs_parameters(kActivations[i])) known += (i ? ", '" : "'") + std::string(kActivations[i].name) + "'";
  }
  refuse(Refusal("activation", std::string("='") + name + "' is not one of " + known + ", clamp(low, high)"));
}

void read_activation_name(const char* name, Request& r) {
  const int number = activation_number(name);
  const ActivationRow& row = kActivations[number];
  if (needs_parameters(row)) {
    refuse(Refusal("activation", std::string("='") + name + "' has parameters")
               .expects(std::string("cutlass_py.") + name + "(" + row.parameters[0] +
                        (row.parameter_count > 1 ? std::string(", ") + row.parameters[1] : "") + ")"));
  }
  r.activation = Activation(number);
  std::copy(row.defaults, row.defaults + 2, r.parameters);
}

// activations.py's Activation: a name and a tuple of parameters.
void read_activation_object(nb::handle value, Request& r) {
  nb::object name = nb::getattr(value, "name", nb::none()), given = nb::getattr(value, "parameters", nb::none());
  if (!PyUnicode_Check(name.ptr()) || !PyTuple_Check(given.ptr())) {
    refuse_type(Refusal("activation", "is " + described_type(value))
                    .expects("a name such as 'gelu', or what cutlass_py.leaky_relu or clamp return"));
  }
  const int number = activation_number(text_from(name, "activation", "'gelu'"));
  const size_t count = nb::len(given);
  if (count != size_t(kActivations[number].parameter_count)) {
    refuse(Refusal("activation", kActivations[number].name + std::string(" has ") +
                                     std::to_string(kActivations[number].parameter_count) + " parameters")
               .hints("found " + std::to_string(count)));
  }
  r.activation = Activation(number);
  for (size_t i = 0; i < count; ++i) r.parameters[i] = real_number(given[i], "a parameter of activation");
}

void read_activation(nb::handle value, Request& r) {
  if (value.is_none()) return;
  if (!PyUnicode_Check(value.ptr())) return read_activation_object(value, r);
  read_activation_name(text_from(value, "activation", "'gelu'"), r);
}

// The function of gates whose values lie beside them; or its derivative.
void read_gated(const Keywords& k, Request& r) {
  if (k.gated.is_none()) return;
  if (!k.activation.is_none()) refuse(Refusal("activation", "is given").but(Refusal("gated", "is, too")));
  if (!k.epilogue.is_none()) refuse(Refusal("gated", "is given beside epilogue"));
  if (!PyUnicode_Check(k.gated.ptr())) {
    refuse_type(Refusal("gated", "is " + described_type(k.gated)).expects("a name such as 'silu'"));
  }
  const std::string given = text_from(k.gated, "gated", "'silu'"), behind = "_interleaved";
  std::string name = given, known;
  if (name.size() > behind.size() && name.compare(name.size() - behind.size(), behind.size(), behind) == 0) {
    name.resize(name.size() - behind.size());
    r.interleaved = true;
  }
  for (const ActivationRow& row : kActivations) {
    if (!row.derivative) continue;
    const char* function = row.name + 2;  // behind "d_"
    if (name == row.name || name == function) r.activation = Activation(activation_named(name)), r.gated = true;
    known += (known.empty() ? "'" : ", '") + std::string(function) + "'";
  }
  if (r.gated) return;
  refuse(
      Refusal("gated", "='" + given + "' is not one of " + known + ", with d_ in front, _interleaved behind, or both"));
}

int16_t splits_from(nb::handle value) {
  if (value.is_none()) return 0;
  if (PyUnicode_Check(value.ptr())) {
    const char* text = text_from(value, "splits", "'stream'");
    if (!std::strcmp(text, "stream")) return -1;
    refuse(Refusal("splits", std::string("='") + text + "' is not 'stream'"));
  }
  if (!PyIndex_Check(value.ptr()) || PyBool_Check(value.ptr())) {
    refuse_type(Refusal("splits", "is " + described_type(value)).expects("a number of parts of k, or 'stream'"));
  }
  const long long parts = PyLong_AsLongLong(nb::int_(value).ptr());
  PyErr_Clear();
  if (parts < 1 || parts > 32767) {
    refuse(Refusal("splits", "is " + shown(value)).expects("1 to 32767, or 'stream'"));
  }
  return int16_t(parts);
}

bool is_numpy_bool(nb::handle value) {
  const std::string type = described_type(value);
  return type == "a numpy.bool" || type == "a numpy.bool_";  // the latter before NumPy 2
}

bool switch_from(nb::handle value, const char* name) {
  if (value.ptr() == Py_False || value.ptr() == Py_True) return value.ptr() == Py_True;
  if (is_numpy_bool(value)) return PyObject_IsTrue(value.ptr()) == 1;
  refuse_type(Refusal(name, "is " + described_type(value)).expects("True or False"));
}

Repeats repeats_from(const Keywords& k) {
  const bool call = switch_from(k.deterministic, "deterministic");
  const bool row = switch_from(k.batch_invariant, "batch_invariant") || batch_invariance_asked;
  if (row && !k.splits.is_none()) {
    refuse(Refusal("splits", "is given").but(Refusal("batch_invariant", "is True")).hints("it cuts k itself"));
  }
  return row ? Repeats::row : call ? Repeats::call : Repeats::no;
}

// Operands that a call writes, always or with the function that it has.
void will_write(const Operands& operands, Written written) {
  for (Role role : kWritten) {
    if (facts_of(role).written != written) continue;
    operands.each_of(int(role),
                     [&](View& view) { view.will_write(role == Role::out ? "; use the returned array instead" : ""); });
  }
}

// ------------------------------------------------------------------------------------------------ user's epilogue

// The function says all that happens to the product.
void check_alone(const Keywords& k) {
  const auto check = [](bool absent, const char* name) {
    if (!absent) refuse(Refusal(name, "is given beside epilogue").hints("make it a parameter of the function"));
  };
  check(PyFloat_CheckExact(k.alpha.ptr()) && PyFloat_AsDouble(k.alpha.ptr()) == 1, "alpha");
  check(k.activation.is_none(), "activation");
  check(k.gated.is_none(), "gated");
  for (const ArrayKeyword& each : kArrayKeywords) {
    const bool may_be_given = each.role == Role::alpha || each.role == Role::out;
    check(may_be_given || (k.*each.value).is_none(), name_of(each.role));
  }
}

void open_user(Operands& operands, const Keywords& k) {
  if (!nb::isinstance<EpilogueCall>(k.epilogue)) {
    refuse_type(Refusal("epilogue", "is " + described_type(k.epilogue))
                    .expects("a call of a function under @cutlass_py.epilogue, such as scaled(alpha=0.5)"));
  }
  check_alone(k);
  const EpilogueCall& call = nb::cast<const EpilogueCall&>(k.epilogue);
  const UserProgram& program = program_of(call.program);
  operands.begin_user(call.program);
  for (size_t i = 0; i < program.names.size(); ++i) {
    const nb::handle value = call.values[i];
    const char* name = program.names[i].c_str();
    const bool read = program.roles[i] == 'r';
    if (read && !is_array(value)) {
      operands.add_user(real_number(value, name));
      continue;
    }
    View& view = operands.add_user(value, name);
    if (!read) view.will_write();
  }
}

}  // namespace

Keywords keywords_from(const nb::dict& given) {
  static PyObject* one = PyFloat_FromDouble(1);
  size_t known = 0;
  auto get = [&](const char* name, PyObject* otherwise) -> nb::handle {
    PyObject* value = PyDict_GetItemString(given.ptr(), name);  // borrowed: the dictionary keeps it
    known += value != nullptr;
    return value ? value : otherwise;
  };
  Keywords k;
  for (const Keyword& each : kKeywords) {
    PyObject* const otherwise = each.otherwise == Default::one  ? one
                                : each.otherwise == Default::no ? Py_False
                                                                : Py_None;
    k.*each.value = get(each.name, otherwise);
  }
  if (known != given.size()) {
    refuse_type(
        Refusal("keywords", "are " + nb::cast<std::string>(nb::str(given.keys())) + ", of which it does not know all"));
  }
  return k;
}

void open_operands(Operands& operands, nb::handle a, nb::handle b, const Keywords& k) {
  operands.open(Role::a, a);
  operands.open(Role::b, b);
  for (const ArrayKeyword& each : kArrayKeywords) {
    const nb::handle value = k.*each.value;
    if (!value.is_none() && (!each.or_number || is_array(value))) operands.open(each.role, value);
  }
  will_write(operands, Written::always);
  if (!k.epilogue.is_none()) open_user(operands, k);
}

Request request_from(Operands& operands, const Keywords& keywords) {
  Request r;
  read_factors(operands, keywords, r);
  read_activation(keywords.activation, r);
  read_gated(keywords, r);
  if (!keywords.compute.is_none()) {
    if (!PyUnicode_Check(keywords.compute.ptr())) {
      refuse_type(Refusal("compute", "is " + described_type(keywords.compute)).expects("a name such as 'tf32'"));
    }
    r.compute = text_from(keywords.compute, "compute", "'tf32'");
  }
  const bool typed = !keywords.out_dtype.is_none();
  if (typed) r.out_dtype = dtype_from(keywords.out_dtype, "out_dtype", current_operation());
  r.splits = splits_from(keywords.splits);
  r.repeats = repeats_from(keywords);
  if (!r.function().derivative) will_write(operands, Written::unless_derivative);
  operands.describe(r);
  return r;
}

}  // namespace cutlass_py
