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

Execution::Execution(OperandViews& operands, const View& like, const View* leads, nb::handle stream)
    : operands_(operands), like_(like) {
  const Device device = like.operand.device;
  if (device.type == DeviceType::cpu) {
    if (!stream.is_none()) stream_from(stream);  // without effect here, but no nonsense either
  } else {
    guard_.emplace(device.id);
    streams_.emplace(operands, leads, device.id, stream);
    if (streams_->several() && streams_->capturing()) {
      refuse(
          Refusal("during graph capture all operands must belong to one framework and its current stream must be the "
                  "one that captures: an event of another stream would end the capture"));
    }
  }
  operands.each([&](View& view) { view.import(this->stream()); });
}

void* Execution::new_result(const Operand& x, int index) {
  for (size_t i = 0; x.matrices && i < x.matrices->size(); ++i) {
    const Operand& piece = (*x.matrices)[i];
    const auto offset = int64_t(reinterpret_cast<uintptr_t>(piece.data));
    pieces_.push_back({offset / dtype_size(x.dtype), piece.shape[0], piece.shape[1]});
  }
  NewArray& made = *new (arrays_ + size_t(index) * sizeof(NewArray)) NewArray;  // NewArray() would zero it first
  made_ |= uint8_t(1 << index);
  const bool may_exchange = like_.type->exchange && !like_.inner.is_valid() && !(streams_ && streams_->given);
  void* data = may_exchange ? make_by_exchange(made, *like_.type, x) : nullptr;
  return made.array.is_valid() ? data : make_by_row(made, x);
}

// No array where the framework makes none like this one: its row in frameworks.py may, or says why not.
void* Execution::make_by_exchange(NewArray& made, const ArrayType& type, const Operand& x) {
  const DtypeRow& dtype = kDtypes[int(x.dtype)];
  DLTensor prototype{};
  prototype.device = {x.device.type == DeviceType::cuda ? kDLCUDA : kDLCPU, x.device.id};
  prototype.ndim = x.rank;
  prototype.dtype = {uint8_t(dtype.dlpack_code), uint8_t(dtype.bits), 1};
  prototype.shape = const_cast<int64_t*>(x.shape);
  DLManagedTensorVersioned* tensor = new_array(*type.exchange, prototype);
  if (!tensor) return nullptr;
  void* data = static_cast<char*>(tensor->dl_tensor.data) + tensor->dl_tensor.byte_offset;
  void* object = nullptr;
  if (type.exchange->managed_tensor_to_py_object_no_sync(tensor, &object) != 0) {
    raise_for_exchange(type, "managed_tensor_to_py_object_no_sync");
  }
  made.array = nb::steal(static_cast<PyObject*>(object));
  return data;
}

void* Execution::make_by_row(NewArray& made, const Operand& x) {
  const int ordinal = x.device.type == DeviceType::cuda ? x.device.id : -1;
  made.row = like_.type->row;
  made.array = made.row.attr("empty")(tuple_of(x.shape, x.rank), dtype_name(x.dtype), ordinal,
                                      reinterpret_cast<uintptr_t>(stream()), like_.inner.is_valid());
  if (nb::isinstance<Buffer>(made.array)) {
    on_own_stream_ = true;
    follow_own_stream(stream(), x.device.id);
    return nb::cast<Buffer&>(made.array).data();
  }
  made.view.open(made.array, x.name);
  made.view.import(stream());
  return made.view.operand.data;
}

void Execution::order_after() {
  streams_->after();
  if (!on_own_stream_ && !streams_->streamless) return;
  // Arrays without a stream, and results of ours, are ordered by our own stream.
  const Stream own = device::own_stream(like_.operand.device.id);
  if (stream() != own) follow(own, stream());
  if (streams_->streamless) release_when_done(operands_, stream());
}

Execution::~Execution() {
  for (int i = 0; made_ >> i; ++i) {
    if (NewArray* array = made(i)) array->~NewArray();
  }
}

nb::object Execution::finished(NewArray& made) {
  made.view.release();
  nb::object finished = made.row.is_valid() ? nb::object(made.row.attr("finish")(made.array)) : made.array;
  if (!operands_.has_lists()) return finished;
  nb::object split = nb::module_::import_("cutlass_py.arrays.frameworks").attr("split");
  if (pieces_.empty()) return split(finished);
  nb::list pieces;
  for (const auto& [first, rows, cols] : pieces_) pieces.append(nb::make_tuple(first, rows, cols));
  return split(finished, pieces);
}

}  // namespace cutlass_py
