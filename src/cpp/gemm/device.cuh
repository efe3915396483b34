// A CUTLASS device type that somebody else wrote, as a kernel: 2.x `device::GemmUniversal`, 3.x `GemmUniversalAdapter`.
//
// D is row-major, the epilogue alpha * acc + beta * C; a 2.x one may do more to it, if alpha and beta are all that its
// parameters are made from. Launched as every other kernel here, not by the type's own host code.
#pragma once

#include "gemm/driver.cuh"

#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "gemm/api2x.cuh"
#include "gemm/api3x.cuh"

namespace cutlass_py {

// A 2.x type as the configuration of api2x.cuh.
template <class Type>
struct DeviceConfig2x {
  using Device = Type;
  using A = typename Type::ElementA;
  using B = typename Type::ElementB;
  using D = typename Type::ElementC;
  using Accumulator = typename Type::ElementAccumulator;
  using LayoutA = typename Type::LayoutA;
  using LayoutB = typename Type::LayoutB;
  template <class Compute>
  using Epilogue = std::conditional_t<true, typename Type::EpilogueOutputOp, Compute>;  // nvcc wants it to depend
  static constexpr int align = Type::kAlignmentA;
  static constexpr bool stream_k = false;
  static_assert(std::is_same_v<typename Type::LayoutC, cutlass::layout::RowMajor>, "cutlass_py: D must be row-major");
  static_assert(Type::kAlignmentA == Type::kAlignmentB, "cutlass_py: A and B must be read by as many elements");
  static_assert(std::is_same_v<typename Type::EpilogueOutputOp::ElementCompute, EpilogueCompute<Accumulator, D>>,
                "cutlass_py: the epilogue must compute in the accumulator's dtype, in f32 for f16");
};

template <class Device>
struct Device3x {
  using Kernel = typename Device::GemmKernel;
  using Arguments = typename Kernel::Arguments;
  using Mainloop = typename Kernel::CollectiveMainloop;
  using D = typename Device::ElementD;
  using Accumulator = typename Device::ElementAccumulator;
  using Compute = EpilogueCompute<Accumulator, D>;
  static constexpr bool reads_c = !std::is_void_v<typename Device::ElementC>;
  struct Config {
    using Cluster = typename Mainloop::DispatchPolicy::ClusterShape;
    using Tile = typename Kernel::TileShape;
  };
  using RowMajor = cutlass::layout::RowMajor;
  static_assert(std::is_same_v<typename Device::LayoutD, RowMajor>, "cutlass_py: D must be row-major");
  static_assert(!reads_c || std::is_same_v<typename Device::LayoutC, RowMajor>, "cutlass_py: C must be row-major");

  static constexpr CutlassPyFacts facts() {
    using Tile = typename Config::Tile;
    using Cluster = typename Config::Cluster;
    return CutlassPyFacts{dtype_name<typename Device::ElementA>,
                          dtype_name<typename Device::ElementB>,
                          dtype_name<Accumulator>,
                          dtype_name<typename Device::ElementC>,
                          dtype_name<D>,
                          {layout_letter<typename Device::LayoutA>, layout_letter<typename Device::LayoutB>, '\0'},
                          3,
                          {int(cute::size<0>(Tile{})), int(cute::size<1>(Tile{})), int(cute::size<2>(Tile{}))},
                          {int(cute::size<0>(Cluster{})), int(cute::size<1>(Cluster{})), int(cute::size<2>(Cluster{}))},
                          int(Kernel::MaxThreadsPerBlock),
                          int(Kernel::SharedStorageSize),
                          int(Mainloop::DispatchPolicy::Stages),
                          Device::kAlignmentA,
                          Device::kAlignmentB,
                          Device::kAlignmentD,
                          Device::kAlignmentD,
                          false};
  }

  static Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyEpilogue& e = g.epilogue;
    const bool given = reads_c && e.c.data;
    Arguments args = arguments_3x<Kernel, false>(g, given ? &e.c : nullptr);
    auto& linear = args.epilogue.thread;
    linear.alpha = Compute(e.alpha.value), linear.beta = Compute(given ? e.beta.value : 0);
    linear.alpha_ptr = static_cast<const Compute*>(e.alpha.device);
    linear.beta_ptr = static_cast<const Compute*>(given ? e.beta.device : nullptr);
    return args;
  }

  static size_t workspace_size(const CutlassPyGemm* g) { return Kernel::get_workspace_size(arguments(*g)); }
  static int run(const CutlassPyGemm* g) { return launch_3x<Config, Kernel>(g, arguments(*g)); }
  static int registers() { return registers_of(function_3x<Kernel>()); }
};

template <class Device>
struct Launcher {
  static auto of() {
    if constexpr (cutlass::gemm::detail::IsCutlass3GemmKernel<typename Device::GemmKernel>::value) {
      return Device3x<Device>{};
    } else {
      return Gemm2x<DeviceConfig2x<Device>>{};
    }
  }
};

// The launcher of a device type, for CUTLASS_PY_KERNEL.
template <class Device>
using GemmDevice = decltype(Launcher<Device>::of());

}  // namespace cutlass_py
