#include "operations/gemm/facts.h"

#include <nanobind/stl/string.h>

#include "arrays/dlpack_export.h"
#include "operations/gemm/call.h"

namespace cutlass_py {

std::string kernel_of(const Plan& plan) {
  if (plan.each) return "matrix by matrix";
  if (plan.provided.is_none()) return kernel_of(static_cast<const DevicePlan&>(plan));
  return nb::cast<std::string>(plan.provided.attr("__self__").attr("name"));  // PythonKernel.call
}

// ------------------------------------------------------------------------------------------------ calls

namespace {

nb::object python(const char* module, const char* function) { return nb::module_::import_(module).attr(function); }

nb::object text_or_none(const char* text) { return text && *text ? nb::object(nb::str(text)) : nb::none(); }

nb::object letter_or_none(char letter) { return letter ? nb::object(nb::str(&letter, 1)) : nb::none(); }

}  // namespace

void tell(const Problem& problem, const Plan& plan, device::Stream stream) {
  const char* scratch = plan.scratch == Dtype::none ? nullptr : dtype_name(plan.scratch);
  nb::dict how;  // as launch_plan.py's LaunchPlan has it
  how["kernel"] = text_or_none(plan.kernel ? plan.kernel->name : nullptr), how["provided"] = plan.provided;
  how["pack_a"] = letter_or_none(plan.pack_a), how["pack_b"] = letter_or_none(plan.pack_b);
  how["pack_scales"] = plan.pack_scales, how["scratch"] = text_or_none(scratch);
  how["sums"] = plan.sums, how["splits"] = plan.splits, how["each"] = bool(plan.each);
  python("cutlass_py.diagnostics.instrumentation", "called")(problem, reinterpret_cast<uintptr_t>(stream), **how);
}

// ------------------------------------------------------------------------------------------------ failures

namespace {

// Shape, strides and place of one operand. A TensorSpec has no address, but an alignment.
nb::dict operand_facts(const Operand& x) {
  nb::dict found;
  found["name"] = x.name, found["dtype"] = dtype_name(x.dtype), found["device"] = to_string(x.device);
  found["shape"] = tuple_of(x.shape, x.rank), found["strides"] = tuple_of(x.strides, x.rank);
  found[x.metadata_only ? "alignment" : "address"] = reinterpret_cast<uintptr_t>(x.data);
  return found;
}

nb::object number(const CutlassPyScalar& x) {
  if (x.imaginary != 0) return nb::steal(PyComplex_FromDoubles(x.value, x.imaginary));
  return nb::float_(x.value);
}

// The file's name, "" where there is none. Raises nothing: what failed before is what counts.
std::string written(const Operands& operands, const Call& call, const std::string& reason) {
  try {
    return nb::cast<std::string>(python("cutlass_py.diagnostics.reproducer", "failed")(facts(operands, call), reason));
  } catch (const std::exception&) {
    return "";
  }
}

std::string with(const std::string& reason, const std::string& path) {
  return path.empty() ? reason : reason + "; " + path + " repeats the call";
}

}  // namespace

nb::dict facts(const Operands& operands, const Call& call) {
  const Epilogue& e = call.epilogue;
  nb::list arrays;
  operands.each([&](const View& view) { arrays.append(operand_facts(view.operand)); });
  nb::dict found;
  found["problem"] = nb::cast(call.problem), found["operands"] = arrays;
  found["alpha"] = number(e.alpha), found["beta"] = number(e.beta), found["scale_out"] = number(e.scale_out);
  found["parameters"] = nb::make_tuple(e.parameters[0], e.parameters[1]);
  nb::list numbers;  // what a user's epilogue was given beside its arrays, in order
  for (const UserOperand& x : call.user) {
    if (x.kind == 'h') numbers.append(x.value);
  }
  found["numbers"] = numbers;
  return found;
}

nb::dict facts(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  const Call call = call_of(operands, a, b, keywords);
  return facts(operands, call);
}

void fail(const Operands& operands, const Call& call) {
  if (call.problem.grouped) throw;  // a script repeats a gemm
  try {
    throw;
  } catch (const CudaError& error) {
    throw CudaError(with(error.what(), written(operands, call, error.what())));
  } catch (nb::python_error& error) {
    const std::string path = written(operands, call, error.what());
    if (!path.empty()) python("cutlass_py.diagnostics.reproducer", "note")(error.value(), path);
    throw;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(with(error.what(), written(operands, call, error.what())));
  }
}

}  // namespace cutlass_py
