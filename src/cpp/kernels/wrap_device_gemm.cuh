// A CUTLASS device type that somebody else wrote, as a kernel: 2.x `device::GemmUniversal`, 3.x `GemmUniversalAdapter`.
//
// D is row-major, the epilogue alpha * acc + beta * C; a 2.x one may do more to it, if alpha and beta are all that its
// parameters are made from. Launched as every other kernel here, not by the type's own host code.
#pragma once

#include "kernels/common/cutlass_driver.cuh"

#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "kernels/cutlass2x/gemm.cuh"
#include "kernels/cutlass3x/gemm.cuh"

namespace cutlass_py {

// A 2.x type as the configuration of cutlass2x/gemm.cuh.
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
struct Device3x : Functions3x<Device3x<Device>> {
  using Kernel = typename Device::GemmKernel;
  using A = typename Device::ElementA;
  using B = typename Device::ElementB;
  using C = typename Device::ElementC;
  using D = typename Device::ElementD;
  using Accumulator = typename Device::ElementAccumulator;
  using LayoutA = typename Device::LayoutA;
  using LayoutB = typename Device::LayoutB;
  using Compute = EpilogueCompute<Accumulator, D>;
  static constexpr bool reads_c = !std::is_void_v<C>;
  using RowMajor = cutlass::layout::RowMajor;
  static_assert(std::is_same_v<typename Device::LayoutD, RowMajor>, "cutlass_py: D must be row-major");
  static_assert(!reads_c || std::is_same_v<typename Device::LayoutC, RowMajor>, "cutlass_py: C must be row-major");

  static constexpr CutlassPyGemmFacts facts() {
    return facts_3x<Device3x, Kernel>(Device::kAlignmentA, Device::kAlignmentB, Device::kAlignmentD, false);
  }

  static auto arguments(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    const CutlassPyEpilogue& e = g.epilogue;
    const bool given = reads_c && e.c.data;
    auto args = arguments_3x<Kernel, false>(g, launch, given ? &e.c : nullptr);
    auto& linear = args.epilogue.thread;
    linear.alpha = Compute(e.alpha.value), linear.beta = Compute(given ? e.beta.value : 0);
    linear.alpha_ptr = static_cast<const Compute*>(e.alpha.device);
    linear.beta_ptr = static_cast<const Compute*>(given ? e.beta.device : nullptr);
    return args;
  }
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
