// The driver's function that encodes TMA descriptors, looked up once. CUTLASS looks it up by its name for every
// descriptor, of which a launch makes three or more.
//
// To be included before what includes CuTe's TMA copies: those call what is declared by then.
#pragma once

#include <cuda_runtime.h>

#include "cutlass/cuda_host_adapter.hpp"

namespace cutlass {

// A better match than CUTLASS's template of this name, all of whose parameters are one pack.
template <class... Rest>
CUresult call_cuTensorMapEncodeTiled(CUtensorMap* descriptor, Rest... rest) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const char* name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 13000
    if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found)) function = nullptr;
#else
    if (cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found)) function = nullptr;
#endif
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encode ? encode(descriptor, rest...) : CUDA_ERROR_UNKNOWN;
}

}  // namespace cutlass
