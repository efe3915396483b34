#include "operations/gemm/python_kernel.h"

#include <nanobind/stl/string.h>

#include "runtime/borrowed_tensor.h"

namespace cutlass_py {
namespace {

// The call as KernelCall (operations/gemm/call.py) has it: operands by name, absent ones left out; the result is `d`.
class Arguments {
 public:
  Arguments(const Call& call, device::Stream stream) : p_(call.problem), stream_(stream) {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) \
  add(Role::NAME, call.SLOT);
#include "gemm_operands.inc"
#undef CUTLASS_PY_OPERAND
    given["activation"] = kActivations[call.epilogue.activation].name;
    given["parameters"] = nb::make_tuple(call.epilogue.parameters[0], call.epilogue.parameters[1]);
    given["problem"] = nb::cast(p_);
    if (p_.user >= 0) given["user"] = user(call);
    if (p_.device.type == DeviceType::cuda) given["stream"] = reinterpret_cast<uintptr_t>(stream);
  }
  ~Arguments() {
    for (const nb::object& operand : lent_) nb::cast<BorrowedTensor&>(operand).end();
  }
  Arguments(const Arguments&) = delete;

  nb::dict given;

 private:
  nb::object lend(const CutlassPyArray& x, std::vector<int64_t> shape) {
    std::vector<int64_t> strides{x.batch, x.row, x.col};
    if (shape.empty()) strides.clear();
    Exported tensor{x.data, dtype_of(x), p_.device, std::move(shape), std::move(strides)};
    lent_.push_back(nb::cast(BorrowedTensor(std::move(tensor), stream_)));
    return lent_.back();
  }
  void add(Role role, const CutlassPyArray& x) {
    if (!is_there(x)) return;
    const auto [rows, cols] = rectangle_of(p_, role);
    const int64_t batch = facts_of(role).shape == Shape::sum ? 1 : p_.batch;
    given[role == Role::out ? "d" : name_of(role)] = lend(x, {batch, rows, cols});
  }
  // A number, or an array of the one element in memory.
  void add(Role role, const CutlassPyScalar& x) {
    const char* name = name_of(role);
    if (x.device) {
      given[name] = lend(Matrix(const_cast<void*>(x.device), scalar_dtype(p_.accumulator)), {});
    } else if (x.imaginary != 0) {
      given[name] = nb::steal(PyComplex_FromDoubles(x.value, x.imaginary));
    } else {
      given[name] = nb::float_(x.value);
    }
  }

  // Of each parameter and output of a user's epilogue. What a reduction writes has an extent of 1 along each axis that
  // it goes over.
  nb::tuple user(const Call& call) {
    nb::list operands;
    for (const UserOperand& x : call.user) {
      if (!is_there(x.matrix)) {
        operands.append(x.value);
      } else {
        const bool rows = x.reduction < 0 || x.kind == 'm', cols = x.reduction < 0 || x.kind == 'n';
        operands.append(lend(x.matrix, {p_.batch, rows ? p_.m : 1, cols ? p_.n : 1}));
      }
    }
    return nb::tuple(operands);
  }

  const Problem& p_;
  device::Stream stream_;
  std::vector<nb::object> lent_;
};

}  // namespace

void run_python_kernel(const Call& call, const Plan& plan, device::Stream stream) {
  const Arguments arguments(call, stream);
  plan.provided(**arguments.given);
}

}  // namespace cutlass_py
