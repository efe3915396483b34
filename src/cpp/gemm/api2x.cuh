// CUTLASS 2.x kernels (mma.sync tensor cores, SIMT) from a configuration struct.
//
// These carry sm80 and everything that TMA cannot: any alignment down to one element, exact f32, and f64 (with the
// sm90 instruction shape on Hopper). C is read only when beta is not 0, decided at run time inside the epilogue.
#pragma once

#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/device/gemm_universal.h"
#include "gemm/common.cuh"

namespace cutlass_py {

template <class Config>
struct Gemm2x {
  using RowMajor = cutlass::layout::RowMajor;
  using ElementA = typename Config::A;
  using ElementB = typename Config::B;
  using ElementD = typename Config::D;
  using Accumulator = typename Config::Accumulator;
  using Compute = Accumulator;
  static constexpr int align_ab = Config::align;
  static constexpr int align_d = Config::align_d;

  using Epilogue = cutlass::epilogue::thread::LinearCombination<ElementD, align_d, Accumulator, Compute>;
  using Device = cutlass::gemm::device::GemmUniversal<
      ElementA, typename Config::LayoutA, ElementB, typename Config::LayoutB, ElementD, RowMajor, Accumulator,
      typename Config::OpClass, typename Config::Arch, typename Config::Tile, typename Config::Warp,
      typename Config::Instruction, Epilogue, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>,
      Config::stages, align_ab, align_ab>;
  using Kernel = typename Device::GemmKernel;
  using Arguments = typename Device::Arguments;
  static constexpr int smem_bytes = int(sizeof(typename Kernel::SharedStorage));

  static constexpr CutlassPyFacts facts() {
    using Tile = typename Kernel::Mma::Shape;
    return CutlassPyFacts{dtype_name<ElementA>,
                          dtype_name<ElementB>,
                          dtype_name<typename Kernel::Mma::ElementC>,
                          dtype_name<ElementD>,
                          dtype_name<ElementD>,
                          {layout_letter<typename Kernel::LayoutA>, layout_letter<typename Kernel::LayoutB>, '\0'},
                          2,
                          {Tile::kM, Tile::kN, Tile::kK},
                          {1, 1, 1},
                          Kernel::kThreadCount,
                          smem_bytes,
                          Kernel::Mma::kStages,
                          Kernel::kAlignmentA,
                          Kernel::kAlignmentB,
                          Kernel::Epilogue::kElementsPerAccess,
                          Kernel::Epilogue::kElementsPerAccess};
  }

  static Arguments arguments(const CutlassPyGemm& g) {
    auto mode = g.batch > 1 ? cutlass::gemm::GemmUniversalMode::kBatched : cutlass::gemm::GemmUniversalMode::kGemm;
    return Arguments(mode, {g.m, g.n, g.k}, g.batch, {Compute(g.alpha), Compute(g.beta)}, g.a, g.b, g.c ? g.c : g.d,
                     g.d, g.batch_a, g.batch_b, g.c ? g.batch_c : g.batch_d, g.batch_d, g.lda, g.ldb,
                     g.c ? g.ldc : g.ldd, g.ldd);
  }

  static size_t workspace_size(const CutlassPyGemm*) { return 0; }  // no split-K through these kernels

  static int launch(const CutlassPyGemm& g) {
    typename Kernel::Params params(arguments(g), g.sm_count, /*occupancy, used by stream-K alone*/ 1);
    cudaLaunchConfig_t config{};
    config.gridDim = params.get_grid_dims();
    config.blockDim = dim3(Kernel::kThreadCount, 1, 1);
    config.dynamicSmemBytes = smem_bytes;
    config.stream = cudaStream_t(g.stream);
    void* kernel_args[] = {&params};
    return launch_status(
        cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(&cutlass::Kernel2<Kernel>), kernel_args));
  }

  // grid.y and grid.z end at 65535: longer problems go as several launches.
  static int run(const CutlassPyGemm* g) {
    static std::atomic<uint64_t> prepared{0};
    const void* function = reinterpret_cast<const void*>(&cutlass::Kernel2<Kernel>);
    if (int error = prepare(function, smem_bytes, g->device, prepared)) return error;

    constexpr int32_t most_batches = 65535;
    constexpr int32_t most_columns = 65535 / 8 * 8 * Kernel::Mma::Shape::kN;
    for (int32_t batch = 0; batch < g->batch; batch += most_batches) {
      for (int64_t column = 0; column < g->n; column += most_columns) {
        CutlassPyGemm part = *g;
        part.batch = g->batch - batch < most_batches ? g->batch - batch : most_batches;
        part.n = int32_t(g->n - column < most_columns ? g->n - column : most_columns);
        constexpr bool row_major_b = std::is_same_v<typename Config::LayoutB, RowMajor>;
        part.a = static_cast<const ElementA*>(g->a) + batch * g->batch_a;
        part.b = static_cast<const ElementB*>(g->b) + batch * g->batch_b + column * (row_major_b ? 1 : g->ldb);
        if (g->c) part.c = static_cast<const ElementD*>(g->c) + batch * g->batch_c + column;
        part.d = static_cast<ElementD*>(g->d) + batch * g->batch_d + column;
        if (int error = launch(part)) return error;
      }
    }
    return 0;
  }
};

}  // namespace cutlass_py
