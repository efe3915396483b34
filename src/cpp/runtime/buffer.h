// Device memory that carries a result into a framework which cannot allocate for others (JAX): a DLPack producer.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>

#include "arrays/dlpack_export.h"
#include "arrays/operand.h"
#include "runtime/device.h"

namespace cutlass_py {

namespace nb = nanobind;

// Allocated from, and freed to, this package's pool in the order of its own stream. Whoever writes it makes that stream
// follow the write.
class Buffer {
 public:
  Buffer(std::vector<int64_t> shape, Dtype dtype, int device_id);
  Buffer(const Buffer&) = default;
  ~Buffer();  // with the GIL, which is given up to free the memory

  // stream: None (legacy default stream), -1 (no synchronisation), or a CUDA stream, which is made to follow the
  // result. max_version: the consumer's newest DLPack version, or None, which asks for the legacy struct.
  nb::object dlpack(nb::handle stream, nb::handle max_version) const;
  // For consumers that read on another stream than the one they gave: the memory is freed behind what is on this one.
  void read_on(uintptr_t stream);
  // One matrix of a batch, in the same memory.
  Buffer matrix(int64_t index) const;
  int64_t length() const { return shape_.empty() ? 0 : shape_[0]; }
  Dtype dtype() const { return dtype_; }
  void* data() const { return static_cast<char*>(memory_->data) + offset_; }
  Device device() const { return {DeviceType::cuda, memory_->device_id}; }

 private:
  struct Memory {
    void* data = nullptr;
    int device_id = 0;
    std::set<device::Stream> consumers;  // freed behind all of them, which therefore have to live as long
    bool capturing() const;
    void release() noexcept;
    static void retire(Memory* memory) noexcept;
  };
  std::vector<int64_t> shape_;
  Dtype dtype_;
  int64_t offset_ = 0;  // bytes
  std::shared_ptr<Memory> memory_;
};

}  // namespace cutlass_py
