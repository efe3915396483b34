// How kernels of our own are launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cutlass_py {

// A kernel with no more shared memory than it declares.
template <class... Parameters, class... Arguments>
int queue(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error) cudaGetLastError();  // leave nothing behind for the caller's next check
  return error;
}

__host__ __device__ inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace cutlass_py
