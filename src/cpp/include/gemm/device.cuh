// Kernels of types of cutlass::gemm::device under the name that sources of kernels include them by.
#include "kernels/wrap_device_gemm.cuh"
