// How CUTLASS asks the driver to encode TMA descriptors.
//
// To be included before what includes CuTe's TMA copies: those call what is declared by then.
#pragma once

#include "cutlass/cuda_host_adapter.hpp"
#include "kernels/common/driver.cuh"

namespace cutlass {

// A better match than CUTLASS's template of this name, all of whose parameters are one pack. That looks the function up
// for every descriptor, of which a launch makes three or more.
template <class... Rest>
CUresult call_cuTensorMapEncodeTiled(CUtensorMap* descriptor, Rest... rest) {
  using Encode = PFN_cuTensorMapEncodeTiled_v12000;
  static const auto encode = cutlass_py::driver_function<Encode>("cuTensorMapEncodeTiled", 12000);
  return encode ? encode(descriptor, rest...) : CUDA_ERROR_UNKNOWN;
}

}  // namespace cutlass
