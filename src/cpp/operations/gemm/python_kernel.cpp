#include "operations/gemm/python_kernel.h"

#include <nanobind/stl/string.h>

#include "arrays/dlpack_view.h"
#include "operations/gemm/run.h"
#include "runtime/streams.h"

namespace cutlass_py {
namespace {

// The call as provider.py takes it (KernelCall): operands by name, absent ones left out.
class Arguments {
 public:
  Arguments(const Call& call, device::Stream stream) : p_(call.problem), stream_(stream) {
    const Epilogue& e = call.epilogue;
    add("a", call.a, p_.m, p_.k), add("b", call.b, p_.k, p_.n), add("d", call.d, p_.m, p_.n);
    add("c", e.c, p_.m, p_.n), add("bias", e.bias, p_.m, p_.n);
    add("gate", e.gate, p_.m, p_.n), add("aux", e.aux, p_.m, p_.n);
    if (p_.block()) {
      add("scale_a", e.scale_a, p_.m, blocks_of(p_.k));
      add("scale_b", e.scale_b, blocks_of(p_.k), blocks_of(p_.n, p_.block()));
    } else {
      add("scale_a", e.scale_a, p_.m, p_.n), add("scale_b", e.scale_b, p_.m, p_.n);
    }
    if (p_.bias_grad != Dtype::none) {
      const bool along_n = p_.bias_grad_axis == 'n';
      given["bias_grad"] = lend(e.bias_grad, {1, along_n ? 1 : p_.m, along_n ? p_.n : 1});
    }
    given["alpha"] = factor(e.alpha), given["beta"] = factor(e.beta), given["scale_out"] = factor(e.scale_out);
    given["activation"] = kActivations[int(e.activation)].name;
    given["parameters"] = nb::make_tuple(e.parameters[0], e.parameters[1]);
    given["problem"] = nb::cast(p_);
    if (p_.user >= 0) given["user"] = user(call);
    if (p_.device.type == DeviceType::cuda) given["stream"] = reinterpret_cast<uintptr_t>(stream);
  }
  ~Arguments() {
    for (const nb::object& operand : lent_) nb::cast<Lent&>(operand).end();
  }
  Arguments(const Arguments&) = delete;

  nb::dict given;

 private:
  nb::object lend(const Matrix& x, std::vector<int64_t> shape) {
    std::vector<int64_t> strides{x.batch, x.row, x.col};
    if (shape.empty()) strides.clear();
    lent_.push_back(nb::cast(Lent({x.data, x.dtype, p_.device, std::move(shape), std::move(strides)}, stream_)));
    return lent_.back();
  }
  void add(const char* name, const Matrix& x, int64_t rows, int64_t cols) {
    if (x.dtype != Dtype::none) given[name] = lend(x, {p_.batch, rows, cols});
  }
  // A number, or an array of the one element in memory.
  nb::object factor(const Scalar& x) {
    if (x.device) return lend({const_cast<void*>(x.device), scalar_dtype(p_.accumulator)}, {});
    if (x.imaginary != 0) return nb::steal(PyComplex_FromDoubles(x.value, x.imaginary));
    return nb::float_(x.value);
  }

  // Of each parameter and output of a user's epilogue. What a reduction writes has an extent of 1 along each axis that
  // it goes over.
  nb::tuple user(const Call& call) {
    nb::list operands;
    for (const UserOperand& x : call.user) {
      if (x.matrix.dtype == Dtype::none) {
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

std::string numpy_kind(int dlpack_code) {
  switch (dlpack_code) {
    case kDLInt: return "<i";
    case kDLUInt: return "<u";
    case kDLFloat: return "<f";
    case kDLComplex: return "<c";
    default: return "|V";
  }
}

}  // namespace

const Exported& Lent::lent(const char* wanted) const {
  if (ended_) {
    const std::string when = "an operand is lent to a kernel for the length of its run; its ";
    throw nb::buffer_error((when + wanted + " is asked for later").c_str());
  }
  return *tensor_;
}

nb::typed<nb::dict, nb::str, nb::any> Lent::array_interface() const {
  const Exported& tensor = lent("memory");
  if (tensor.device.type != DeviceType::cpu)
    throw nb::attribute_error("an operand on a device has no __array_interface__");
  static char nothing[16];
  const int size = dtype_size(tensor.dtype);
  nb::typed<nb::dict, nb::str, nb::any> interface;
  interface["version"] = 3;
  interface["shape"] = tuple_of(tensor.shape), interface["strides"] = tuple_of(tensor.strides, size);
  interface["typestr"] = numpy_kind(kDtypes[int(tensor.dtype)].dlpack_code) + std::to_string(size);
  interface["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.data ? tensor.data : nothing), false);
  return interface;
}

nb::object Lent::dlpack(nb::handle stream, nb::handle max_version) const {
  const Exported& tensor = lent("memory");
  if (tensor.device.type == DeviceType::cuda) {
    constexpr int64_t legacy = 1;  // as DLPack numbers streams; launches know it as 0 too
    const int64_t consumer = stream.is_none() ? legacy : nb::cast<int64_t>(stream);
    const auto launch = reinterpret_cast<int64_t>(launch_);
    if (consumer != -1 && (consumer ? consumer : legacy) != (launch ? launch : legacy)) {
      follow(reinterpret_cast<device::Stream>(consumer), launch_);
    }
  }
  return dlpack_capsule(tensor, tensor_, max_version);
}

void run_provided(const Call& call, const Plan& plan, device::Stream stream) {
  const Arguments arguments(call, stream);
  plan.provided(**arguments.given);
}

}  // namespace cutlass_py
