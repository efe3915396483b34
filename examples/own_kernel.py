"""Kernels of your own: a NumPy function for the CPU, and CUDA C++ that is compiled on demand for the GPU."""

import numpy as np

try:
    import torch
except ImportError:
    torch = None

import cutlass_py
from cutlass_py import CudaKernel, GemmArguments, KernelCall, KernelMetadata, OperandMetadata, TensorSpec

# ---------------------------------------------------------------------------------------- a function, on the CPU

EXACT = KernelMetadata(
    "own_longdouble",
    operands={name: OperandMetadata("f64") for name in ("a", "b", "d")},  # any strides
    accumulator="f64",
    epilogue="linear",  # alpha * acc; what else gemm is asked for, this kernel does not take
    cc=(0, 0),  # the CPU
)


def in_long_double(call: KernelCall) -> None:
    """Sums in NumPy's longest float: slower, and more accurate."""
    a, b, d = map(np.asarray, (call.a, call.b, call.d))  # no copies
    d[...] = call.alpha * np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))


# ---------------------------------------------------------------------------------------- CUDA C++, on the GPU

SOURCE = r"""
#include <cuda_runtime.h>

#include "kernel.h"

namespace {

constexpr int kTile = 16;

// One element of D for each thread; tiles of A and B pass through shared memory.
__global__ void multiply(CutlassPyGemm g) {
  __shared__ double tile_a[kTile][kTile], tile_b[kTile][kTile + 1];
  const auto* factor = static_cast<const double*>(g.epilogue.alpha.device);  // an alpha that is an array
  const double alpha = factor ? *factor : g.epilogue.alpha.value;
  const int64_t row = int64_t(blockIdx.x) * kTile + threadIdx.y;
  for (int batch = blockIdx.z; batch < g.batch; batch += gridDim.z) {
    const double* a = static_cast<const double*>(g.a) + batch * g.batch_a;
    const double* b = static_cast<const double*>(g.b) + batch * g.batch_b;
    double* d = static_cast<double*>(g.d) + batch * g.batch_d;
    for (int64_t first = int64_t(blockIdx.y) * kTile; first < g.n; first += int64_t(gridDim.y) * kTile) {
      const int64_t col = first + threadIdx.x;
      double sum = 0;
      for (int64_t k = 0; k < g.k; k += kTile) {
        const int64_t across = k + threadIdx.x, down = k + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < g.m && across < g.k ? a[row * g.lda + across] : 0;
        tile_b[threadIdx.y][threadIdx.x] = down < g.k && col < g.n ? b[down * g.ldb + col] : 0;
        __syncthreads();
        for (int i = 0; i < kTile; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
      }
      if (row < g.m && col < g.n) d[row * g.ldd + col] = alpha * sum;
    }
  }
}

size_t workspace_size(const void*, const CutlassPyLaunch*) { return 0; }

int run(const void* arguments, const CutlassPyLaunch* launch) {
  const auto& g = *static_cast<const CutlassPyGemm*>(arguments);
  const auto tiles = [](int64_t extent) { return (extent + kTile - 1) / kTile; };
  const auto most = [](int64_t blocks) { return unsigned(blocks < 65535 ? blocks : 65535); };
  const dim3 grid(unsigned(tiles(g.m)), most(tiles(g.n)), most(g.batch));
  multiply<<<grid, dim3(kTile, kTile), 0, cudaStream_t(launch->stream)>>>(g);
  return cudaGetLastError();
}

}  // namespace

static const CutlassPyGemmFacts facts = {
    "f64", "f64", "f64", "void", "f64", "tt", 2, {kTile, kTile, kTile}, {1, 1, 1},
    kTile * kTile, 4224, 1, 1, 1, 1, 1, 0};
extern "C" const CutlassPyKernel cutlass_py_own_dgemm = {
    "own_dgemm",
    &facts,
    &workspace_size,
    &run,
};
"""
DGEMM = CudaKernel(
    "own_dgemm",
    family="simt_gemm",
    a="f64",
    layout="tt",
    tile=(16, 16, 16),
    stages=1,
    align=1,
    align_d=1,
    source=SOURCE,
)


# ---------------------------------------------------------------------------------------- CUTLASS types

RELU = CudaKernel(  # a 2.x type, whose epilogue is relu(alpha * acc + beta * c)
    "own_relu",
    family="sm80_gemm",
    a="f16",
    layout="tn",
    tile=(128, 64, 32),
    warp=(64, 32, 32),
    stages=4,
    epilogue="linearc_relu",
    source="""
#include "cutlass/epilogue/thread/linear_combination_relu.h"
#include "cutlass/gemm/device/gemm_universal.h"

namespace own {
using Half = cutlass::half_t;
using Rows = cutlass::layout::RowMajor;
using Columns = cutlass::layout::ColumnMajor;
using Relu = cutlass::epilogue::thread::LinearCombinationRelu<Half, 8, float, float>;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>;
}  // namespace own
""",
    device_type="""cutlass::gemm::device::GemmUniversal<
    own::Half, own::Rows, own::Half, own::Columns, own::Half, own::Rows, float, cutlass::arch::OpClassTensorOp,
    cutlass::arch::Sm80, cutlass::gemm::GemmShape<128, 64, 32>, cutlass::gemm::GemmShape<64, 32, 32>,
    cutlass::gemm::GemmShape<16, 8, 16>, own::Relu, own::Swizzle, 4, 8, 8>""",
)
HOPPER = CudaKernel(  # a 3.x type
    "own_hopper",
    family="sm90_gemm",
    a="f16",
    layout="tn",
    tile=(128, 128, 64),
    cluster=(2, 1, 1),
    epilogue="linearc",
    source="""
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace own {
using Half = cutlass::half_t;
using Rows = cutlass::layout::RowMajor;
using Columns = cutlass::layout::ColumnMajor;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, Half, Rows, 8, Half, Rows, 8,
    cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Half, Rows, 8, Half, Columns, 8, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(Epilogue::SharedStorage))>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
}  // namespace own
""",
    device_type="cutlass::gemm::device::GemmUniversalAdapter<own::Kernel>",
)


def main() -> None:
    a, b = np.random.rand(100, 80), np.random.rand(80, 60)
    with cutlass_py.register_kernel(EXACT, in_long_double):
        d = cutlass_py.gemm(a, b, kernel="own_longdouble")
        print(f"own_longdouble: {abs(d - a @ b).max():.1e} from NumPy's own product")
        print("with a bias:", cutlass_py.explain(a, b, bias=np.ones(60)).rejected[0][1])

    spec = TensorSpec((512, 512), "f64")
    with cutlass_py.register_kernel(DGEMM) as registration:
        kernel = registration.kernels[0]
        print(
            f"{kernel.name}: {kernel.metadata.epilogue}, supported: {bool(kernel.supports(GemmArguments(spec, spec)))}"
        )
        if not (torch and torch.cuda.is_available()):
            print("not run: no GPU, or no torch to make arrays there")
            return
        x = torch.rand(512, 512, dtype=torch.float64, device="cuda")
        y = cutlass_py.gemm(x, x, kernel=kernel)  # compiled here: it was asked for by name
        print(f"own_dgemm: {(y - x @ x).abs().max():.1e} from torch's product")


if __name__ == "__main__":
    main()
