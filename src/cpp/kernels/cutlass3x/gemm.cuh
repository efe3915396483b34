// CUTLASS 3.x kernels (CollectiveBuilder, TMA + wgmma) from a configuration struct.
//
// The configuration is what codegen.py writes: types, layouts, tile, cluster, schedules, scheduler, `swap`, and the
// chain of its epilogue (epilogue_visitors.cuh). D is always row-major seen from outside. With `swap` the kernel
// computes D^T = B^T A^T, so that the long side of the problem takes the M slot of the tile; the caller notices
// nothing.
//
// The launch bypasses GemmUniversalAdapter: Params are rebuilt from the arguments on every call (0.4 us, so no
// descriptor can go stale), everything that is constant per device is done once.
#pragma once

#include "kernels/common/cutlass_driver.cuh"
#include "kernels/sm90/pdl.cuh"

#include "cute/tensor.hpp"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "kernels/common/cutlass_types.cuh"
#include "kernels/common/descriptor.cuh"
#include "kernels/cutlass3x/epilogue_visitors.cuh"
#include "kernels/sm90/fp8_two_level_accumulation.cuh"
#include "kernels/sm90/tf32_register_operand.cuh"

#undef launch_dependent_grids

namespace cutlass_py {

// Built by hand in 64 bits: CUTLASS's make_cute_packed_stride multiplies two ints for the batch stride.
template <class Stride>
Stride stride_of(int64_t ld, int64_t batch) {
  Stride stride{};
  if constexpr (cute::is_static_v<cute::remove_cvref_t<decltype(cute::get<0>(stride))>>) {
    cute::get<1>(stride) = ld;
  } else {
    cute::get<0>(stride) = ld;
  }
  if constexpr (!cute::is_static_v<cute::remove_cvref_t<decltype(cute::get<2>(stride))>>) cute::get<2>(stride) = batch;
  return stride;
}

constexpr int kTmaBytes = 16;  // TMA: what rows are multiples of

// The types of a kernel as CUTLASS sees the problem, after the swap; also the context of the stages in
// epilogue_visitors.cuh.
template <class Config>
struct Types3x {
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  template <class Layout>
  using Transposed = std::conditional_t<std::is_same_v<Layout, RowMajor>, ColumnMajor, RowMajor>;

  static constexpr bool swap = Config::swap;
  using A = std::conditional_t<swap, typename Config::B, typename Config::A>;
  using B = std::conditional_t<swap, typename Config::A, typename Config::B>;
  using LayoutA = std::conditional_t<swap, Transposed<typename Config::LayoutB>, typename Config::LayoutA>;
  using LayoutB = std::conditional_t<swap, Transposed<typename Config::LayoutA>, typename Config::LayoutB>;
  using LayoutD = std::conditional_t<swap, ColumnMajor, RowMajor>;
  using C = typename Config::C;
  using D = typename Config::D;
  using BiasElement = typename Config::BiasElement;
  using Accumulator = typename Config::Accumulator;
  using Compute = EpilogueCompute<Accumulator, D>;  // of alpha, beta and the epilogue's arithmetic
  using Tile = typename Config::Tile;
  using EpilogueSchedule = typename Config::EpilogueSchedule;

  static constexpr int align_a = kTmaBytes / int(sizeof(A));
  static constexpr int align_b = kTmaBytes / int(sizeof(B));
  static constexpr bool tma_store = !std::is_same_v<EpilogueSchedule, cutlass::epilogue::NoSmemWarpSpecialized>;
  static constexpr int align_d = tma_store ? kTmaBytes / int(sizeof(D)) : 1;
  static constexpr int align_c = align_d * int(sizeof(D)) / int(sizeof(std::conditional_t<std::is_void_v<C>, D, C>));

  static auto stride_d(int64_t ld, int64_t batch) {
    return stride_of<cutlass::detail::TagToStrideC_t<LayoutD>>(ld, batch);
  }
};

// The epilogue of a kernel, and what it is told.
template <class Config>
struct EpilogueParts3x {
  using X = Types3x<Config>;
  using LayoutD = typename X::LayoutD;
  using Fusion = typename Config::template Fusion<X>;
  static constexpr bool linear = std::is_same_v<Fusion, visitors::Linear<X>>;
  using Node = std::conditional_t<linear, typename Fusion::Node, visitors::Tree<X, Fusion>>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Config::Tile, typename Config::Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, typename X::Accumulator, typename X::Compute, typename X::C,
      LayoutD, X::align_c, typename X::D, LayoutD, X::align_d, typename Config::EpilogueSchedule, Node>::CollectiveOp;
  using FusionArguments = std::remove_reference_t<decltype(std::declval<typename Epilogue::Arguments>().thread)>;
  static FusionArguments fusion_arguments(const CutlassPyGemm& g) {
    if constexpr (linear) {
      return Fusion::template arguments<FusionArguments>(g);
    } else {
      return Fusion::arguments(g);
    }
  }
};

// The pieces of a kernel. With scales in blocks, the layout of an operand is a tuple: its own, and that of its scales.
template <class Config, class LayoutA = typename Types3x<Config>::LayoutA,
          class LayoutB = typename Types3x<Config>::LayoutB>
struct Collectives3x : EpilogueParts3x<Config> {
  using X = Types3x<Config>;
  using Epilogue = typename EpilogueParts3x<Config>::Epilogue;
  using Built = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename X::A, LayoutA, X::align_a, typename X::B, LayoutB,
      X::align_b, typename X::Accumulator, typename Config::Tile, typename Config::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
      typename Config::MainloopSchedule>::CollectiveOp;
  using Mainloop = std::conditional_t<Config::steady, SteadyMainloop<Built>,
                                      std::conditional_t<reads_rows_of_tf32<Built>(), RegisterMainloop<Built>, Built>>;
};

// Every mainloop's policy has it; not every kernel.
template <class Kernel>
using ClusterOf = typename Kernel::CollectiveMainloop::DispatchPolicy::ClusterShape;

// `Types` has the dtypes and layouts as the caller sees the problem.
template <class Types, class Kernel>
constexpr CutlassPyGemmFacts facts_3x(int align_a, int align_b, int align_d, bool pointers) {
  using Tile = typename Kernel::TileShape;
  using Cluster = ClusterOf<Kernel>;
  return CutlassPyGemmFacts{
      dtype_name<typename Types::A>,
      dtype_name<typename Types::B>,
      dtype_name<typename Types::Accumulator>,
      dtype_name<typename Types::C>,
      dtype_name<typename Types::D>,
      {layout_letter<typename Types::LayoutA>, layout_letter<typename Types::LayoutB>, '\0'},
      3,
      {int(cute::size<0>(Tile{})), int(cute::size<1>(Tile{})), int(cute::size<2>(Tile{}))},
      {int(cute::size<0>(Cluster{})), int(cute::size<1>(Cluster{})), int(cute::size<2>(Cluster{}))},
      int(Kernel::MaxThreadsPerBlock),
      int(Kernel::SharedStorageSize),
      int(Kernel::CollectiveMainloop::DispatchPolicy::Stages),
      align_a,
      align_b,
      align_d,
      align_d,
      pointers};
}

// Of a configuration.
template <class Config, class Kernel>
constexpr CutlassPyGemmFacts facts_of(bool pointers) {
  return facts_3x<Config, Kernel>(kTmaBytes / int(sizeof(typename Config::A)),
                                  kTmaBytes / int(sizeof(typename Config::B)), Types3x<Config>::align_d, pointers);
}

// Whether the kernel waits for its predecessor before it reads what that writes, and may begin before it has ended:
// CUTLASS's TMA kernels whose warps share out the work do, where they were compiled for it; others never wait.
template <class Kernel>
constexpr bool waits_3x() {
#ifdef CUTLASS_ENABLE_GDC_FOR_SM90
  using Schedule = typename Kernel::CollectiveMainloop::DispatchPolicy::Schedule;
  return std::is_base_of_v<cutlass::gemm::KernelTmaWarpSpecialized, Schedule> ||
         std::is_base_of_v<cutlass::gemm::KernelTmaWarpSpecializedCooperative, Schedule> ||
         std::is_base_of_v<cutlass::gemm::KernelTmaWarpSpecializedPingpong, Schedule>;
#else
  return false;
#endif
}

template <class Kernel>
const void* function_3x() {
  return reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>);
}

// Workspace, Params, launch: the same for every 3.x kernel.
template <class Kernel>
int launch_3x(const CutlassPyLaunch& launch, typename Kernel::Arguments args) {
  static DriverLauncher launcher;
  const void* function = function_3x<Kernel>();
  if (int error = launcher.prepare(function, Kernel::SharedStorageSize, launch.device)) return error;
  if (cutlass::Status status = Kernel::initialize_workspace(args, launch.workspace, cudaStream_t(launch.stream));
      status != cutlass::Status::kSuccess) {
    return -int(status);
  }
  typename Kernel::Params params = Kernel::to_underlying_arguments(args, launch.workspace);

  using Cluster = ClusterOf<Kernel>;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  // Not for clusters of one block: with it they took up to 1.7 times as long as without (docs/performance/launches.md).
  if constexpr (cute::size(Cluster{}) > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {unsigned(cute::size<0>(Cluster{})), unsigned(cute::size<1>(Cluster{})),
                                          unsigned(cute::size<2>(Cluster{}))};
  }
  if (waits_3x<Kernel>() && launch.overlap) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = Kernel::get_grid_shape(params);
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.stream = cudaStream_t(launch.stream);
  config.attrs = attributes;
  config.numAttrs = count;
  void* kernel_args[] = {&params};
  return launcher.launch(function, config, kernel_args, launch.device);
}

// The functions of a launcher that has a `Kernel` and makes that kernel's `arguments` of a call.
template <class Gemm>
struct Functions3x {
  static size_t workspace_size(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    return Gemm::Kernel::get_workspace_size(Gemm::arguments(g, launch));
  }
  static int run(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    return launch_3x<typename Gemm::Kernel>(launch, Gemm::arguments(g, launch));
  }
  static int registers() { return registers_of(function_3x<typename Gemm::Kernel>()); }
};

// What the kernel reads as CUTLASS's source C: the addend, the gate, or aux of a derivative.
template <class X>
const CutlassPyArray* source_of(const CutlassPyGemm& g) {
  if constexpr (std::is_void_v<typename X::C>) {
    return nullptr;
  } else {
    const CutlassPyEpilogue& e = g.epilogue;
    const CutlassPyArray* source = e.c.data ? &e.c : e.gate.data ? &e.gate : &e.aux;
    return source->data ? source : nullptr;
  }
}

// fp8: sums stay in the tensor cores for this many MMAs before they are added up in f32. CUTLASS counts to it in steps
// of a tile's MMAs (32 deep) and looks for equality, so that a longer tile needs a longer interval.
template <class Kernel, class Arguments>
auto promote(Arguments& mainloop, int) -> decltype(void(mainloop.mma_promotion_interval)) {
  constexpr int mmas = int(cute::size<2>(typename Kernel::TileShape{})) / 32;
  mainloop.mma_promotion_interval = mmas > 4 ? mmas : 4;
}
template <class Kernel, class Arguments>
void promote(Arguments&, long) {}  // not a mainloop that promotes

template <bool swap, class Arguments>
auto order_tiles(Arguments& scheduler, const CutlassPyLaunch& launch, int) -> decltype(void(scheduler.raster_order)) {
  using Raster = cutlass::gemm::kernel::detail::RasterOrderOptions;
  constexpr Raster along_m = swap ? Raster::AlongN : Raster::AlongM;
  constexpr Raster along_n = swap ? Raster::AlongM : Raster::AlongN;
  scheduler.raster_order = launch.raster == 0 ? Raster::Heuristic : launch.raster == 1 ? along_m : along_n;
  scheduler.max_swizzle_size = launch.swizzle;
}
template <bool swap, class Arguments>
void order_tiles(Arguments&, const CutlassPyLaunch&, long) {}  // not a scheduler with an order to choose

// Everything but the epilogue's own arguments. `source` is what the kernel reads as C, null for nothing.
template <class Kernel, bool swap>
typename Kernel::Arguments arguments_3x(const CutlassPyGemm& g, const CutlassPyLaunch& launch,
                                        const CutlassPyArray* source) {
  typename Kernel::Arguments args{};
  args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  args.problem_shape = swap ? cute::make_shape(g.n, g.m, g.k, g.batch) : cute::make_shape(g.m, g.n, g.k, g.batch);
  args.mainloop.ptr_A = static_cast<decltype(args.mainloop.ptr_A)>(swap ? g.b : g.a);
  args.mainloop.ptr_B = static_cast<decltype(args.mainloop.ptr_B)>(swap ? g.a : g.b);
  args.mainloop.dA = stride_of<typename Kernel::StrideA>(swap ? g.ldb : g.lda, swap ? g.batch_b : g.batch_a);
  args.mainloop.dB = stride_of<typename Kernel::StrideB>(swap ? g.lda : g.ldb, swap ? g.batch_a : g.batch_b);
  promote<Kernel>(args.mainloop, 0);
  // A TMA descriptor is encoded for C even where it is not read, and wants a valid address.
  args.epilogue.ptr_C = static_cast<decltype(args.epilogue.ptr_C)>(source ? source->data : g.d);
  args.epilogue.ptr_D = static_cast<decltype(args.epilogue.ptr_D)>(g.d);
  args.epilogue.dC =
      stride_of<typename Kernel::StrideC>(source ? source->row : g.ldd, source ? source->batch : g.batch_d);
  args.epilogue.dD = stride_of<typename Kernel::StrideD>(g.ldd, g.batch_d);
  args.hw_info.device_id = launch.device;
  args.hw_info.sm_count = launch.sm_count;
  order_tiles<swap>(args.scheduler, launch, 0);
  return args;
}

template <class Config, class Parts = Collectives3x<Config>>
struct Gemm3x : Functions3x<Gemm3x<Config, Parts>> {
  using X = Types3x<Config>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, typename Parts::Mainloop,
                                                      typename Parts::Epilogue, typename Config::Scheduler>;

  static constexpr CutlassPyGemmFacts facts() { return facts_of<Config, Kernel>(false); }

  static typename Kernel::Arguments arguments(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    typename Kernel::Arguments args = arguments_3x<Kernel, X::swap>(g, launch, source_of<X>(g));
    args.epilogue.thread = Parts::fusion_arguments(g);
    return args;
  }
};

}  // namespace cutlass_py
