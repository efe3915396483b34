// CUTLASS 2.x kernels under the name that sources of kernels include them by.
#include "kernels/cutlass2x/gemm.cuh"
