// How kernels of our own are launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cutlass_py {

// A kernel with no more shared memory than it declares.
template <class... Parameters, class... Arguments>
int queue(void (*kernel)(Parameters...), cudaLaunchConfig_t config, const Arguments&... arguments) {
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error) cudaGetLastError();  // leave nothing behind for the caller's next check
  return error;
}
template <class... Parameters, class... Arguments>
int queue(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.stream = stream;
  return queue(kernel, config, arguments...);
}

// As above, of blocks that wait for each other and so run at once: `blocks` of them, which the whole device has room
// for, or fewer where a context has a part of it.
template <class... Parameters, class... Arguments>
int queue_at_once(void (*kernel)(Parameters...), unsigned blocks, dim3 block, cudaStream_t stream,
                  const Arguments&... arguments) {
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative, cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = block, config.stream = stream, config.attrs = &cooperative, config.numAttrs = 1;
  for (;; blocks /= 2) {
    config.gridDim = blocks;
    const int error = queue(kernel, config, arguments...);
    if (error != cudaErrorCooperativeLaunchTooLarge || blocks == 1) return error;
  }
}

__host__ __device__ inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace cutlass_py
