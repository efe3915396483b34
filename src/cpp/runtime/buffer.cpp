#include "runtime/buffer.h"

#include <algorithm>
#include <mutex>

#include "arrays/dlpack_export.h"
#include "runtime/streams.h"

namespace cutlass_py {

bool Buffer::Memory::capturing() const { return std::any_of(consumers.begin(), consumers.end(), &device::capturing); }

void Buffer::Memory::release() noexcept {
  if (!data) return;
  try {
    device::Guard guard(device_id);
    const device::Stream own = device::own_stream(device_id);
    for (device::Stream consumer : consumers) {
      try {
        device::wait(own, consumer);
      } catch (const CudaError&) {  // of a stream that failed, nothing more will run
      }
    }
    device::release(data, own);
  } catch (const CudaError&) {
    // The context is going down, and the memory with it.
  }
}

// An event of a stream that captures would draw our own into the capture. So what such a stream has read is kept, until
// the next memory that is given back after the capture.
void Buffer::Memory::retire(Memory* memory) noexcept {
  static std::mutex mutex;  // deleters may come without the GIL
  static auto* retired = new std::vector<Memory*>();
  std::lock_guard<std::mutex> lock(mutex);
  retired->push_back(memory);
  const auto kept = std::partition(retired->begin(), retired->end(), [](Memory* each) { return !each->capturing(); });
  for (auto each = retired->begin(); each != kept; ++each) (*each)->release(), delete *each;
  retired->erase(retired->begin(), kept);
}

Buffer::Buffer(std::vector<int64_t> shape, Dtype dtype, int device_id)
    : shape_(std::move(shape)), dtype_(dtype), memory_(new Memory, &Memory::retire) {
  int64_t bytes = dtype_size(dtype);
  for (int64_t extent : shape_) bytes *= extent;
  device::Guard guard(device_id);
  memory_->device_id = device_id;
  if (bytes) memory_->data = device::allocate(size_t(bytes), device_id, device::own_stream(device_id));
}

Buffer::~Buffer() {
  nb::gil_scoped_release may_wait;
  memory_.reset();
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
      if (device::capturing(consumer)) {
        PyErr_SetString(PyExc_BufferError, "a Buffer is ready on another stream, which cannot be joined to a capture");
        nb::raise_python_error();
      }
      follow(consumer, own);
      memory_->consumers.insert(consumer);
    }
  }
  return dlpack_capsule({data(), dtype_, device(), shape_, {}}, memory_, max_version);
}

void Buffer::read_on(uintptr_t stream) { memory_->consumers.insert(reinterpret_cast<device::Stream>(stream)); }

}  // namespace cutlass_py
