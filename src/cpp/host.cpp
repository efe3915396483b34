#include "host.h"

#include <nanobind/stl/string.h>

#include "dlpack_view.h"

namespace cutlass_py {
namespace {

// An array as host.py takes it: (address, dtype, shape, strides in bytes).
nb::tuple host_operand(const Matrix& x, int64_t rows, int64_t cols, int64_t batch) {
  const int64_t size = dtype_size(x.dtype);
  return nb::make_tuple(reinterpret_cast<uintptr_t>(x.data), dtype_name(x.dtype), nb::make_tuple(batch, rows, cols),
                        nb::make_tuple(x.batch * size, x.row * size, x.col * size));
}

nb::tuple host_operand(const Operand& x) {
  const int64_t size = dtype_size(x.dtype);
  nb::list shape, strides;
  for (int i = 0; i < x.rank; ++i) shape.append(x.shape[i]), strides.append(x.strides[i] * size);
  return nb::make_tuple(reinterpret_cast<uintptr_t>(x.data), dtype_name(x.dtype), nb::tuple(shape), nb::tuple(strides));
}

// A number, or an array of the one element in memory.
nb::object host_scalar(const Scalar& x, Dtype accumulator) {
  if (x.device) {
    return nb::make_tuple(reinterpret_cast<uintptr_t>(x.device), dtype_name(scalar_dtype(accumulator)),
                          nb::make_tuple(), nb::make_tuple());
  }
  if (x.imaginary != 0) return nb::steal(PyComplex_FromDoubles(x.value, x.imaginary));
  return nb::float_(x.value);
}

// The number of the class, and what was given for each parameter and output. What a reduction writes has an extent of 1
// along the axis that it goes over.
nb::tuple host_user(const Call& call) {
  const Problem& p = call.problem;
  nb::list operands;
  for (const UserOperand& x : call.user) {
    if (x.matrix.dtype == Dtype::none) {
      operands.append(x.value);
    } else {
      const bool reduced = x.written && x.kind != 't';
      operands.append(
          host_operand(x.matrix, reduced && x.kind == 'n' ? 1 : p.m, reduced && x.kind == 'm' ? 1 : p.n, p.batch));
    }
  }
  return nb::make_tuple(p.user, nb::tuple(operands));
}

}  // namespace

void run_on_host(const Call& call, const Plan& plan) {
  const Problem& p = call.problem;
  const Epilogue& e = call.epilogue;
  nb::dict given;
  auto add = [&](const char* name, const Matrix& x, int64_t rows, int64_t cols) {
    if (x.dtype != Dtype::none) given[name] = host_operand(x, rows, cols, p.batch);
  };
  add("a", call.a, p.m, p.k), add("b", call.b, p.k, p.n), add("d", call.d, p.m, p.n);
  add("c", e.c, p.m, p.n), add("bias", e.bias, p.m, p.n), add("gate", e.gate, p.m, p.n), add("aux", e.aux, p.m, p.n);
  add("scale_a", e.scale_a, p.m, p.n), add("scale_b", e.scale_b, p.m, p.n);
  if (p.bias_grad != Dtype::none) {
    const bool along_n = p.bias_grad_axis == 'n';
    given["bias_grad"] = host_operand(e.bias_grad, along_n ? 1 : p.m, along_n ? p.n : 1, 1);
  }
  given["alpha"] = host_scalar(e.alpha, p.accumulator), given["beta"] = host_scalar(e.beta, p.accumulator);
  given["scale_out"] = host_scalar(e.scale_out, p.accumulator);
  given["activation"] = kActivations[int(e.activation)].name;
  given["parameters"] = nb::make_tuple(e.parameters[0], e.parameters[1]);
  if (p.user >= 0) given["user"] = host_user(call);
  given["accumulator"] = dtype_name(p.accumulator);
  given["empty_product"] = p.empty_product;
  plan.host(given);
}

bool shares_memory(const Operand& x, const Operand& y) {
  nb::object shares = nb::module_::import_("cutlass_py.host").attr("shares_memory");
  return nb::cast<bool>(shares(host_operand(x), host_operand(y)));
}

}  // namespace cutlass_py
