#include "operations/quantize/python_kernel.h"

#include <nanobind/stl/string.h>

#include <utility>

#include "runtime/borrowed_tensor.h"

namespace cutlass_py::quantization {
namespace {

// The call as QuantizeCall (operations/quantize/call.py) has it: out is `q` there, and a vector is a row.
class Arguments {
 public:
  Arguments(const Call& call, device::Stream stream) : stream_(stream) {
    given["x"] = lend(call.x, true), given["q"] = lend(call.q, true), given["scales"] = lend(call.scales, false);
    given["problem"] = nb::cast(call.problem);
    if (call.problem.device.type == DeviceType::cuda) given["stream"] = reinterpret_cast<uintptr_t>(stream);
  }
  ~Arguments() {
    for (const nb::object& operand : lent_) nb::cast<BorrowedTensor&>(operand).end();
  }
  Arguments(const Arguments&) = delete;

  nb::dict given;

 private:
  nb::object lend(const Operand& x, bool matrices) {
    std::vector<int64_t> shape(x.shape, x.shape + x.rank), strides(x.strides, x.strides + x.rank);
    if (matrices && x.rank == 1) shape.insert(shape.begin(), 1), strides.insert(strides.begin(), x.shape[0]);
    Exported tensor{x.data, x.dtype, x.device, std::move(shape), std::move(strides)};
    lent_.push_back(nb::cast(BorrowedTensor(std::move(tensor), stream_)));
    return lent_.back();
  }

  device::Stream stream_;
  std::vector<nb::object> lent_;
};

}  // namespace

void run_python_kernel(const Call& call, const Plan& plan, device::Stream stream) {
  const Arguments arguments(call, stream);
  plan.provided(**arguments.given);
}

}  // namespace cutlass_py::quantization
