// CUTLASS 2.x kernels on products of unequal size, in one launch: groups of rows, of columns or of k, told apart by
// numbers in device memory, or matrices of a list.
//
// A kernel multiplies by the mainloop and the epilogue of gemm.cuh's. Its blocks stay and take every so many-th tile,
// which each warp finds by a running sum of the groups' tiles. CUTLASS's GemmGrouped is such a loop too, but finds its
// problems in memory, where another kernel would have to write them, and reads beyond the operands where there is no k.
#pragma once

#include "kernels/cutlass2x/gemm.cuh"
#include "kernels/cutlass2x/groups.cuh"

namespace cutlass_py {

// One tile: the mainloop, where there is a k, and the epilogue.
template <class Kernel, class Parameters>
__device__ void multiply2x(const Parameters& p, const Product2x& x, int m, int n,
                           typename Kernel::SharedStorage& memory) {
  using Mma = typename Kernel::Mma;
  using Epilogue = typename Kernel::Epilogue;
  using Results = typename Epilogue::OutputTileIterator;
  const int thread = int(threadIdx.x), warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
  const int row = m * Mma::Shape::kM, column = n * Mma::Shape::kN;
  typename Mma::FragmentC sums;
  sums.clear();
  __syncthreads();  // all have left the epilogue of the tile before, which lies where the mainloop begins
  if (x.k > 0) {    // the mainloop would read beyond the operands
    typename Mma::IteratorA a(typename Kernel::LayoutA(p.leading(p.a, &CutlassPyExtents::lda, x)),
                              p.template address<typename Kernel::ElementA>(p.a, x), {x.m, x.k}, thread, {row, 0});
    typename Mma::IteratorB b(typename Kernel::LayoutB(p.leading(p.b, &CutlassPyExtents::ldb, x)),
                              p.template address<typename Kernel::ElementB>(p.b, x), {x.k, x.n}, thread, {0, column});
    Mma mma(memory.main_loop, thread, warp, lane);
    mma((x.k + Mma::Shape::kK - 1) / Mma::Shape::kK, sums, a, b, sums);
  }
  const auto results = [&](const Operand2x& operand, int64_t CutlassPyExtents::* listed) {
    const typename Results::Params params(typename Kernel::LayoutC(p.leading(operand, listed, x)));
    return Results(params, p.template address<typename Kernel::ElementC>(operand, x), {x.m, x.n}, thread,
                   {row, column});
  };
  Results c = results(p.c, &CutlassPyExtents::ldc), d = results(p.d, &CutlassPyExtents::ldd);
  Epilogue epilogue(memory.epilogue, thread, warp, lane);
  epilogue(typename Kernel::EpilogueOutputOp(p.output), d, sums, c);
}

template <class Kernel, class Parameters>
__global__ void __launch_bounds__(Kernel::kThreadCount) grouped2x(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(16) char grouped2x_memory[];
  using Tile = typename Kernel::Mma::Shape;
  Tiles2x<Tile::kM, Tile::kN, Parameters> tiles(p);
  while (tiles.next()) {
    const Product2x x = tiles.product();
    multiply2x<Kernel>(p, x, tiles.m, tiles.n, *reinterpret_cast<typename Kernel::SharedStorage*>(grouped2x_memory));
  }
}

template <class Config, class Parts = Parts2x<Config>>
struct Grouped2x {
  using Single = Gemm2x<Config, Parts>;
  using Kernel = typename Parts::Kernel;
  using Tile = typename Kernel::Mma::Shape;
  using Output = typename Kernel::EpilogueOutputOp::Params;
  using Parameters = Parameters2x<Output>;
  inline static DriverLauncher launcher;
  inline static Occupancy occupancy;

  static constexpr CutlassPyGemmFacts facts() { return Single::facts(); }

  static const void* function() { return reinterpret_cast<const void*>(&grouped2x<Kernel, Parameters>); }

  static int registers() { return registers_of(function()); }

  static size_t workspace_size(const CutlassPyGemm&, const CutlassPyLaunch&) { return 0; }

  static int run(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    const int64_t tiles = most_tiles2x(g, Tile::kM, Tile::kN);
    if (tiles <= 0 || tiles > kMostTiles2x || !(g.extents ? g.pointers : g.groups.numbers != nullptr)) {
      return -int(cutlass::Status::kErrorInvalidProblem);
    }
    if (int error = launcher.prepare(function(), Single::smem_bytes, launch.device)) return error;
    const int64_t at_once =
        int64_t(launch.sm_count) * occupancy(function(), Kernel::kThreadCount, Single::smem_bytes, launch.device);
    using RowMajor = cutlass::layout::RowMajor;
    Parameters p = parameters2x<Output>(g, std::is_same_v<typename Config::LayoutA, RowMajor>,
                                        std::is_same_v<typename Config::LayoutB, RowMajor>);
    p.output = Parts::epilogue(g);
    cudaLaunchConfig_t config{};
    config.gridDim = unsigned(tiles < at_once ? tiles : at_once);
    config.blockDim = dim3(Kernel::kThreadCount, 1, 1);
    config.dynamicSmemBytes = Single::smem_bytes;
    config.stream = cudaStream_t(launch.stream);
    void* arguments[] = {&p};
    return launcher.launch(function(), config, arguments, launch.device);
  }
};

}  // namespace cutlass_py
