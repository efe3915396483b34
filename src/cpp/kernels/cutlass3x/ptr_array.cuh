// CUTLASS 3.x kernels on arrays of addresses: one launch multiplies a list of equal matrices that lie anywhere.
//
// Every multiprocessor keeps its own TMA descriptors in the workspace and points them at the next matrix. These kernels
// do not wait for a predecessor: they must not overlap.
#pragma once

#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "kernels/cutlass3x/gemm.cuh"

namespace cutlass_py {

template <class Config>
struct GemmArray3x : Functions3x<GemmArray3x<Config>> {
  using X = Types3x<Config>;
  using Parts = Collectives3x<Config>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::ArrayProblemShape<cute::Shape<int, int, int, int>>,
                                                      typename Parts::Mainloop, typename Parts::Epilogue>;
  using Arguments = typename Kernel::Arguments;
  static_assert(!X::swap);

  static constexpr CutlassPyGemmFacts facts() { return facts_of<Config, Kernel>(true); }

  static Arguments arguments(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kArray;
    args.problem_shape = {{g.m, g.n, g.k, g.batch}};
    args.mainloop.ptr_A = const_cast<const typename X::A**>(static_cast<const typename X::A* const*>(g.a));
    args.mainloop.ptr_B = const_cast<const typename X::B**>(static_cast<const typename X::B* const*>(g.b));
    args.mainloop.dA = stride_of<typename Kernel::StrideA>(g.lda, 0);
    args.mainloop.dB = stride_of<typename Kernel::StrideB>(g.ldb, 0);
    const CutlassPyArray* source = source_of<X>(g);
    args.epilogue.ptr_C = static_cast<decltype(args.epilogue.ptr_C)>(source ? source->data : g.d);
    args.epilogue.ptr_D = static_cast<typename X::D**>(g.d);
    args.epilogue.dC = stride_of<typename Kernel::StrideC>(source ? source->row : g.ldd, 0);
    args.epilogue.dD = stride_of<typename Kernel::StrideD>(g.ldd, 0);
    args.epilogue.thread = Parts::fusion_arguments(g);
    args.hw_info.device_id = launch.device;
    args.hw_info.sm_count = launch.sm_count;
    order_tiles<false>(args.scheduler, launch, 0);
    return args;
  }
};

}  // namespace cutlass_py
