// Status codes of `run` as text. Compiled into each library: each has its own static CUDA runtime, and its own CUTLASS.
#pragma once

#include <cstdio>

#include <cuda_runtime_api.h>

#include "cutlass/cutlass.h"

namespace cutlass_py {

inline const char* error_string(int status) {
  if (status < 0) return cutlass::cutlassGetStatusString(cutlass::Status(-status));
  thread_local char text[256];
  std::snprintf(text, sizeof text, "%s: %s", cudaGetErrorName(cudaError_t(status)),
                cudaGetErrorString(cudaError_t(status)));
  return text;
}

}  // namespace cutlass_py
