// Kernels of types of cutlass::gemm::device under the name that sources of kernels include them by.
#include "kernels/device_type.cuh"
