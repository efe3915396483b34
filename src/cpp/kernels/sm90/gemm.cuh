// A kernel of ours for sm90 as the C ABI has it, from a configuration struct: of a library, or of a cubin.
//
// The configuration is what lean_cpp.py writes: a Design, and whether the operands change places (`swap`): then the
// left one is B, so that the long side of a problem is along the tile's rows, and D is stored turned. Kernels that
// differ in that alone are one function.
#pragma once

#include "kernels/sm90/kernel.cuh"

namespace cutlass_py {

template <class Config>
struct LeanFacts {
  using X = typename Config::Design;
  static constexpr bool swap = Config::swap;
  using A = std::conditional_t<swap, typename X::Right, typename X::Left>;
  using B = std::conditional_t<swap, typename X::Left, typename X::Right>;

  static constexpr CutlassPyGemmFacts facts() {
    constexpr int align = X::unaligned ? 1 : 16 / int(sizeof(typename A::Type)),
                  align_d = X::direct ? 1 : 16 / X::d_size;
    constexpr bool a_along = swap ? X::right_along : X::left_along, b_along = swap ? X::left_along : X::right_along;
    return {A::name,
            B::name,
            X::Sum::name,
            X::reads ? X::D::name : "void",
            X::D::name,
            {a_along ? 'n' : 't', b_along ? 't' : 'n', '\0'},
            3,
            {X::M, X::N, X::lines * X::line},
            {X::cluster_m, X::cluster_n, Config::slices},
            sm90::kThreads,
            X::shared_bytes,
            X::stages,
            align,
            align,
            align_d,
            align_d,
            0};
  }
  static constexpr sm90::Shape shape = X::shape(swap, Config::slices);
};

}  // namespace cutlass_py

#ifdef __CUDACC_RTC__
#include "kernels/sm90/cubin.cuh"
#else
#include "kernels/common/descriptor.cuh"
#include "kernels/sm90/launch.h"

namespace cutlass_py {
namespace sm90 {

// One of these serves all kernels that are launched by the same function.
template <class X>
struct Function {
  inline static DriverLauncher launcher;

  static int run(const Shape& shape, const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    using Reductions = typename X::Epilogue::Reductions;
    if (int error = sm90::run(&kernel<X>, launcher, shape, g, launch)) return error;
    if constexpr (Reductions::count > 0) {
      Joining joining;
      fill(joining, shape, g, launch);
      return queue(&joining_kernel<Reductions>, joining.config,
                   reinterpret_cast<AllJoined<Reductions::count>&>(joining.p));
    }
    return 0;
  }
  static int registers() { return registers_of(reinterpret_cast<const void*>(&kernel<X>)); }
};

// What a kernel has of its own beside facts: no code.
struct Kernel {
  Shape shape;
  int (*function)(const Shape&, const CutlassPyGemm&, const CutlassPyLaunch&);
};

// CutlassPyKernel's functions of them all.
struct Launcher {
  static size_t workspace_size(const void* arguments, const CutlassPyLaunch* launch) {
    if (!launch->kernel) return 0;
    return sm90::workspace_size(of(*launch).shape, *static_cast<const CutlassPyGemm*>(arguments));
  }
  static int run(const void* arguments, const CutlassPyLaunch* launch) {
    if (!launch->kernel) return cudaErrorInvalidValue;
    return of(*launch).function(of(*launch).shape, *static_cast<const CutlassPyGemm*>(arguments), *launch);
  }

 private:
  static const Kernel& of(const CutlassPyLaunch& launch) { return *static_cast<const Kernel*>(launch.kernel->context); }
};

}  // namespace sm90

template <class Config>
struct LeanGemm : LeanFacts<Config>, sm90::Launcher {
  using Function = sm90::Function<typename Config::Design>;
  static constexpr CutlassPyOperation operation = CUTLASS_PY_GEMM;
  static constexpr sm90::Kernel context{LeanFacts<Config>::shape, &Function::run};
};

}  // namespace cutlass_py
#endif
