// CUTLASS 3.x kernels under the name that sources of kernels include them by.
#include "kernels/cutlass3x/gemm.cuh"

namespace cutlass_py {
namespace fusion3x = visitors;
}
