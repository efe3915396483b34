// Handing memory to others: a tensor as a DLPack capsule.
#pragma once

#include <memory>
#include <vector>

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>

#include "arrays/operand.h"

namespace cutlass_py {

namespace nb = nanobind;

// What a capsule describes. Strides in elements; none for row-major.
struct Exported {
  void* data = nullptr;
  Dtype dtype = Dtype::none;
  Device device;
  std::vector<int64_t> shape, strides;
};

// `owner` lives until the consumer lets go. max_version: the consumer's newest DLPack version, or None, which asks for
// the legacy struct.
nb::object dlpack_capsule(const Exported& tensor, std::shared_ptr<const void> owner, nb::handle max_version);

// (device type, ordinal), as __dlpack_device__ answers.
nb::typed<nb::tuple, int, int> dlpack_device(Device device);

// BufferError where a consumer asks for a copy, or for memory of another device: what it gets is the memory itself.
void check_handed_over_as_it_lies(Device device, nb::handle dl_device, nb::handle copy);

using Integers = nb::typed<nb::tuple, int, nb::ellipsis>;

// A shape, or strides in elements of `unit`.
Integers tuple_of(const int64_t* numbers, size_t count, int64_t unit = 1);
inline Integers tuple_of(const std::vector<int64_t>& numbers, int64_t unit = 1) {
  return tuple_of(numbers.data(), numbers.size(), unit);
}

}  // namespace cutlass_py
