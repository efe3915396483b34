#include "buffer.h"

#include <nanobind/stl/vector.h>

#include <vector>

namespace cutlass_py {

struct Buffer::Export {
  union {
    DLManagedTensorVersioned versioned;
    DLManagedTensor legacy;
  } managed;
  std::vector<int64_t> shape;
  std::shared_ptr<Memory> memory;
};

namespace {

template <class Tensor>
constexpr const char* capsule_name = std::is_same_v<Tensor, DLManagedTensor> ? "dltensor" : "dltensor_versioned";

}  // namespace

template <class Tensor>
nb::object Buffer::export_as(Export* exported, const DLTensor& tensor) {
  auto* managed = reinterpret_cast<Tensor*>(&exported->managed);
  *managed = Tensor{};
  if constexpr (std::is_same_v<Tensor, DLManagedTensorVersioned>) managed->version = {DLPACK_MAJOR_VERSION, 0};
  managed->dl_tensor = tensor;
  managed->manager_ctx = exported;
  managed->deleter = [](Tensor* self) { delete static_cast<Export*>(self->manager_ctx); };
  return nb::steal(PyCapsule_New(managed, capsule_name<Tensor>, [](PyObject* capsule) {
    // A capsule that nobody consumed still owns its tensor.
    if (!PyCapsule_IsValid(capsule, capsule_name<Tensor>)) return;
    auto* unused = static_cast<Tensor*>(PyCapsule_GetPointer(capsule, capsule_name<Tensor>));
    unused->deleter(unused);
  }));
}

Buffer::Memory::~Memory() {
  if (!data) return;
  try {
    device::Guard guard(device_id);
    const device::Stream own = device::own_stream(device_id);
    for (device::Stream consumer : consumers) device::wait(own, consumer);
    device::release(data, own);
  } catch (const CudaError&) {
    // The context is going down, and the memory with it.
  }
}

Buffer::Buffer(std::vector<int64_t> shape, Dtype dtype, int device_id)
    : shape_(std::move(shape)), dtype_(dtype), memory_(std::make_shared<Memory>()) {
  int64_t bytes = dtype_size(dtype);
  for (int64_t extent : shape_) bytes *= extent;
  device::Guard guard(device_id);
  memory_->device_id = device_id;
  if (bytes) memory_->data = device::allocate(size_t(bytes), device_id, device::own_stream(device_id));
}

Buffer Buffer::matrix(int64_t index) const {
  if (index < 0 || index >= length()) throw nb::index_error("Buffer: no such matrix");
  Buffer matrix = *this;
  matrix.shape_.erase(matrix.shape_.begin());
  int64_t bytes = dtype_size(dtype_);
  for (int64_t extent : matrix.shape_) bytes *= extent;
  matrix.offset_ += index * bytes;
  return matrix;
}

nb::object Buffer::dlpack(nb::handle stream, nb::handle max_version) const {
  const int64_t number = stream.is_none() ? 1 : nb::cast<int64_t>(stream);
  if (number != -1 && memory_->data) {
    const auto consumer = reinterpret_cast<device::Stream>(number);
    device::Guard guard(memory_->device_id);
    const device::Stream own = device::own_stream(memory_->device_id);
    if (consumer != own) {
      device::wait(consumer, own);
      memory_->consumers.insert(consumer);
    }
  }
  auto* exported = new Export{{}, shape_, memory_};
  DLTensor tensor{};
  tensor.data = data();
  tensor.device = {kDLCUDA, memory_->device_id};
  tensor.ndim = int(exported->shape.size());
  tensor.dtype = {uint8_t(kDtypes[int(dtype_)].dlpack_code), uint8_t(kDtypes[int(dtype_)].bits), 1};
  tensor.shape = exported->shape.data();
  // A consumer that names no version knows only the legacy struct.
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= DLPACK_MAJOR_VERSION;
  return versioned ? export_as<DLManagedTensorVersioned>(exported, tensor)
                   : export_as<DLManagedTensor>(exported, tensor);
}

}  // namespace cutlass_py
