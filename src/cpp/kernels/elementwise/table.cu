// The elementwise functions as a kernel library exports them (kernel.h), and the one that writes lists of addresses.
#include <algorithm>

#include "kernels/elementwise/elementwise.h"

namespace cutlass_py {
namespace {

constexpr int64_t kAddresses = 448;  // by one launch: a kernel has 4 KB of arguments

struct Addresses {
  const void* address[kAddresses];
};

__global__ void write_kernel(const __grid_constant__ Addresses list, const void** destination) {
  destination[threadIdx.x] = list.address[threadIdx.x];
}

}  // namespace

int write_pointers(const void* const* pointers, int64_t count, void* destination, void* stream) {
  for (int64_t first = 0; first < count; first += kAddresses) {
    const int64_t some = std::min(count - first, kAddresses);
    Addresses list;
    std::copy(pointers + first, pointers + first + some, list.address);
    const void** to = static_cast<const void**>(destination) + first;
    if (int error = queue(write_kernel, 1, unsigned(some), cudaStream_t(stream), list, to)) return error;
  }
  return 0;
}

}  // namespace cutlass_py

extern "C" {

extern const CutlassPyElementwise cutlass_py_elementwise;
const CutlassPyElementwise cutlass_py_elementwise = {
    &cutlass_py::copy,   &cutlass_py::compose,          &cutlass_py::compose_workspace,
    &cutlass_py::reduce, &cutlass_py::reduce_workspace, &cutlass_py::write_pointers,
    &cutlass_py::gather, &cutlass_py::clear_rest,
};
}
