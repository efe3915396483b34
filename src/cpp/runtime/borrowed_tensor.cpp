#include "runtime/borrowed_tensor.h"

#include <nanobind/stl/string.h>

#include "runtime/streams.h"

namespace cutlass_py {
namespace {

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

const Exported& BorrowedTensor::lent(const char* wanted) const {
  if (ended_) {
    const std::string when = "an operand is lent to a kernel for the length of its run; its ";
    throw nb::buffer_error((when + wanted + " is asked for later").c_str());
  }
  return *tensor_;
}

nb::typed<nb::dict, nb::str, nb::any> BorrowedTensor::array_interface() const {
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

nb::object BorrowedTensor::dlpack(nb::handle stream, nb::handle max_version) const {
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

}  // namespace cutlass_py
