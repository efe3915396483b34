// CUTLASS 3.x kernels on lists of matrices under the name that sources of kernels include them by.
#include "kernels/cutlass3x/ptr_array.cuh"
