#include "buffer.h"

#include <nanobind/stl/vector.h>

#include <vector>

namespace cutlass_py {

struct Buffer::Export {
  DLManagedTensorVersioned managed{};
  std::vector<int64_t> shape;
  std::shared_ptr<Memory> memory;
};

Buffer::Memory::~Memory() {
  if (!data) return;
  try {
    device::Guard guard(device_id);
    const device::Stream own = device::own_stream(device_id);
    if (last_consumer) device::wait(own, last_consumer);
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

nb::object Buffer::dlpack(nb::handle stream) const {
  const int64_t number = stream.is_none() ? 1 : nb::cast<int64_t>(stream);
  if (number != -1 && memory_->data) {
    const auto consumer = reinterpret_cast<device::Stream>(number);
    device::Guard guard(memory_->device_id);
    const device::Stream own = device::own_stream(memory_->device_id);
    if (consumer != own) {
      device::wait(consumer, own);
      memory_->last_consumer = consumer;
    }
  }
  auto* exported = new Export();
  exported->shape = shape_;
  exported->memory = memory_;
  DLManagedTensorVersioned& managed = exported->managed;
  managed.version = {DLPACK_MAJOR_VERSION, 0};
  managed.manager_ctx = exported;
  managed.deleter = [](DLManagedTensorVersioned* self) { delete static_cast<Export*>(self->manager_ctx); };
  managed.dl_tensor.data = memory_->data;
  managed.dl_tensor.device = {kDLCUDA, memory_->device_id};
  managed.dl_tensor.ndim = int(exported->shape.size());
  managed.dl_tensor.dtype = {uint8_t(kDtypes[int(dtype_)].dlpack_code), uint8_t(kDtypes[int(dtype_)].bits), 1};
  managed.dl_tensor.shape = exported->shape.data();
  return nb::steal(PyCapsule_New(&managed, "dltensor_versioned", [](PyObject* capsule) {
    // A capsule that nobody consumed still owns its tensor.
    if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return;
    auto* unused = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    unused->deleter(unused);
  }));
}

}  // namespace cutlass_py
