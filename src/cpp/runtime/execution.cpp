#include "runtime/execution.h"

#include <nanobind/stl/string.h>

#include "arrays/dlpack_export.h"
#include "runtime/buffer.h"

namespace cutlass_py {
namespace {

using device::Stream;

void follow_own_stream(Stream stream, int device_id) {
  const Stream own = device::own_stream(device_id);
  if (own == stream) return;
  if (device::capturing(stream)) {
    refuse(
        Refusal("during graph capture no result is made in memory of this package's own, which another stream "
                "orders: pass out="));
  }
  follow(stream, own);
}

}  // namespace

Execution::Execution(OperandViews& operands, const View& like, const View* out, nb::handle stream)
    : operands_(operands), like_(like), makes_result_(!out) {
  const Device device = like.operand.device;
  if (device.type == DeviceType::cpu) {
    if (!stream.is_none()) stream_from(stream);  // without effect here, but no nonsense either
  } else {
    guard_.emplace(device.id);
    streams_.emplace(operands, out, device.id, stream);
    if (streams_->several() && streams_->capturing()) {
      refuse(
          Refusal("during graph capture all operands must belong to one framework and its current stream must be the "
                  "one that captures: an event of another stream would end the capture"));
    }
  }
  operands.each([&](View& view) { view.import(this->stream()); });
}

void* Execution::new_result(const Operand& made) {
  const bool may_exchange = like_.type->exchange && !like_.inner.is_valid() && !(streams_ && streams_->given);
  if (!may_exchange || !make_by_exchange(*like_.type, made)) make_by_row(made);
  return data_;
}

// False where the framework makes no array like this one: its row in frameworks.py may, or says why not.
bool Execution::make_by_exchange(const ArrayType& type, const Operand& x) {
  const DtypeRow& dtype = kDtypes[int(x.dtype)];
  DLTensor prototype{};
  prototype.device = {x.device.type == DeviceType::cuda ? kDLCUDA : kDLCPU, x.device.id};
  prototype.ndim = x.rank;
  prototype.dtype = {uint8_t(dtype.dlpack_code), uint8_t(dtype.bits), 1};
  prototype.shape = const_cast<int64_t*>(x.shape);
  DLManagedTensorVersioned* made = new_array(*type.exchange, prototype);
  if (!made) return false;
  data_ = static_cast<char*>(made->dl_tensor.data) + made->dl_tensor.byte_offset;
  void* object = nullptr;
  if (type.exchange->managed_tensor_to_py_object_no_sync(made, &object) != 0) {
    raise_for_exchange(type, "managed_tensor_to_py_object_no_sync");
  }
  array_ = nb::steal(static_cast<PyObject*>(object));
  return true;
}

void Execution::make_by_row(const Operand& x) {
  const int ordinal = x.device.type == DeviceType::cuda ? x.device.id : -1;
  row_ = like_.type->row;
  array_ = row_.attr("empty")(tuple_of(x.shape, x.rank), dtype_name(x.dtype), ordinal,
                              reinterpret_cast<uintptr_t>(stream()), like_.inner.is_valid());
  if (nb::isinstance<Buffer>(array_)) {
    on_own_stream_ = true;
    data_ = nb::cast<Buffer&>(array_).data();
    follow_own_stream(stream(), x.device.id);
  } else {
    view_.open(array_, "out");
    view_.import(stream());
    data_ = view_.operand.data;
  }
}

void Execution::order_after() {
  streams_->after();
  if (!on_own_stream_ && !streams_->streamless) return;
  // Arrays without a stream, and results of ours, are ordered by our own stream.
  const Stream own = device::own_stream(like_.operand.device.id);
  if (stream() != own) follow(own, stream());
  if (streams_->streamless) release_when_done(operands_, stream());
}

nb::object Execution::finish(nb::handle out) {
  nb::object finished = nb::borrow(out);
  if (makes_result_) {
    view_.release();
    finished = row_.is_valid() ? nb::object(row_.attr("finish")(array_)) : array_;
    if (operands_.has_lists()) finished = nb::module_::import_("cutlass_py.arrays.frameworks").attr("split")(finished);
  }
  operands_.tell_written();
  return finished;
}

}  // namespace cutlass_py
