// CUTLASS 3.x kernels (CollectiveBuilder, TMA + wgmma) from a configuration struct.
//
// The configuration is what families.py writes: types, layouts, tile, cluster, schedules, `swap`. D is always row-major
// seen from outside. With `swap` the kernel computes D^T = B^T A^T, so that the long side of the problem takes the M
// slot of the tile; the caller notices nothing.
//
// The launch bypasses GemmUniversalAdapter: Params are rebuilt from the arguments on every call (0.4 us, so no
// descriptor can go stale), everything that is constant per device is done once.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "gemm/common.cuh"

namespace cutlass_py {

template <class Config>
struct Gemm3x {
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  template <class Layout>
  using Transposed = std::conditional_t<std::is_same_v<Layout, RowMajor>, ColumnMajor, RowMajor>;

  // The problem as the kernel sees it, after the swap.
  static constexpr bool swap = Config::swap;
  using ElementA = std::conditional_t<swap, typename Config::B, typename Config::A>;
  using ElementB = std::conditional_t<swap, typename Config::A, typename Config::B>;
  using LayoutA = std::conditional_t<swap, Transposed<typename Config::LayoutB>, typename Config::LayoutA>;
  using LayoutB = std::conditional_t<swap, Transposed<typename Config::LayoutA>, typename Config::LayoutB>;
  using LayoutD = std::conditional_t<swap, ColumnMajor, RowMajor>;
  using ElementC = typename Config::C;
  using ElementD = typename Config::D;
  using Accumulator = typename Config::Accumulator;
  using Compute = Accumulator;  // of alpha, beta and the epilogue's arithmetic

  static constexpr int align_a = 16 / int(sizeof(ElementA));  // TMA: 16-byte rows
  static constexpr int align_b = 16 / int(sizeof(ElementB));
  static constexpr bool tma_store =
      !std::is_same_v<typename Config::EpilogueSchedule, cutlass::epilogue::NoSmemWarpSpecialized>;
  static constexpr int align_d = tma_store ? 16 / int(sizeof(ElementD)) : 1;

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Config::Tile, typename Config::Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, Accumulator, Compute, ElementC, LayoutD, align_d, ElementD,
      LayoutD, align_d, typename Config::EpilogueSchedule>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, ElementA, LayoutA, align_a, ElementB, LayoutB, align_b,
      Accumulator, typename Config::Tile, typename Config::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
      typename Config::MainloopSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue,
                                                      cutlass::gemm::PersistentScheduler>;
  using Arguments = typename Kernel::Arguments;

  static constexpr CutlassPyFacts facts() {
    using Tile = typename Config::Tile;
    using Cluster = typename Config::Cluster;
    return CutlassPyFacts{dtype_name<typename Config::A>,
                          dtype_name<typename Config::B>,
                          dtype_name<Accumulator>,
                          dtype_name<ElementC>,
                          dtype_name<ElementD>,
                          {layout_letter<typename Config::LayoutA>, layout_letter<typename Config::LayoutB>, '\0'},
                          3,
                          {int(cute::size<0>(Tile{})), int(cute::size<1>(Tile{})), int(cute::size<2>(Tile{}))},
                          {int(cute::size<0>(Cluster{})), int(cute::size<1>(Cluster{})), int(cute::size<2>(Cluster{}))},
                          int(Kernel::MaxThreadsPerBlock),
                          int(Kernel::SharedStorageSize),
                          int(Mainloop::DispatchPolicy::Stages),
                          swap ? align_b : align_a,
                          swap ? align_a : align_b,
                          align_d,
                          align_d};
  }

  // Built by hand in 64 bits: CUTLASS's make_cute_packed_stride multiplies two ints for the batch stride.
  template <class Stride>
  static Stride stride_of(int64_t ld, int64_t batch) {
    Stride stride{};
    if constexpr (cute::is_static_v<cute::remove_cvref_t<decltype(cute::get<0>(stride))>>) {
      cute::get<1>(stride) = ld;
    } else {
      cute::get<0>(stride) = ld;
    }
    cute::get<2>(stride) = batch;
    return stride;
  }

  static Arguments arguments(const CutlassPyGemm& g) {
    Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = swap ? cute::make_shape(g.n, g.m, g.k, g.batch) : cute::make_shape(g.m, g.n, g.k, g.batch);
    args.mainloop.ptr_A = static_cast<const ElementA*>(swap ? g.b : g.a);
    args.mainloop.ptr_B = static_cast<const ElementB*>(swap ? g.a : g.b);
    args.mainloop.dA = stride_of<typename Kernel::StrideA>(swap ? g.ldb : g.lda, swap ? g.batch_b : g.batch_a);
    args.mainloop.dB = stride_of<typename Kernel::StrideB>(swap ? g.lda : g.ldb, swap ? g.batch_a : g.batch_b);
    // A TMA descriptor is encoded for C even where it is not read, and wants a valid address.
    args.epilogue.ptr_C = static_cast<decltype(args.epilogue.ptr_C)>(g.c ? g.c : g.d);
    args.epilogue.ptr_D = static_cast<ElementD*>(g.d);
    args.epilogue.dC = stride_of<typename Kernel::StrideC>(g.c ? g.ldc : g.ldd, g.c ? g.batch_c : g.batch_d);
    args.epilogue.dD = stride_of<typename Kernel::StrideD>(g.ldd, g.batch_d);
    args.epilogue.thread.alpha = static_cast<Compute>(g.alpha);
    args.epilogue.thread.beta = static_cast<Compute>(g.beta);
    args.hw_info.device_id = g.device;
    args.hw_info.sm_count = g.sm_count;
    using Raster = cutlass::gemm::kernel::detail::RasterOrderOptions;
    constexpr Raster along_m = swap ? Raster::AlongN : Raster::AlongM;
    constexpr Raster along_n = swap ? Raster::AlongM : Raster::AlongN;
    args.scheduler.raster_order = g.raster == 0 ? Raster::Heuristic : g.raster == 1 ? along_m : along_n;
    args.scheduler.max_swizzle_size = g.swizzle;
    return args;
  }

  static size_t workspace_size(const CutlassPyGemm* g) { return Kernel::get_workspace_size(arguments(*g)); }

  static int run(const CutlassPyGemm* g) {
    static std::atomic<uint64_t> prepared{0};
    const void* function = reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>);
    if (int error = prepare(function, Kernel::SharedStorageSize, g->device, prepared)) return error;

    Arguments args = arguments(*g);
    if (cutlass::Status status = Kernel::initialize_workspace(args, g->workspace, cudaStream_t(g->stream));
        status != cutlass::Status::kSuccess) {
      return -int(status);
    }
    typename Kernel::Params params = Kernel::to_underlying_arguments(args, g->workspace);

    using Cluster = typename Config::Cluster;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {unsigned(cute::size<0>(Cluster{})), unsigned(cute::size<1>(Cluster{})),
                                    unsigned(cute::size<2>(Cluster{}))};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = Kernel::get_grid_shape(params);
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.stream = cudaStream_t(g->stream);
    config.attrs = attributes;
    config.numAttrs = g->overlap ? 2 : 1;
    void* kernel_args[] = {&params};
    return launch_status(cudaLaunchKernelExC(&config, function, kernel_args));
  }
};

}  // namespace cutlass_py
