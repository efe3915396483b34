// The descriptor of a kernel, whatever it computes, by the launcher that it is written as.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "abi/kernel.h"

namespace cutlass_py {

inline int registers_of(const void* function) {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, function) == cudaSuccess) return attributes.numRegs;
  cudaGetLastError();
  return 0;
}

// What a launcher's `run` takes says which operation it computes; headers of other kernels have theirs.
template <class Arguments>
constexpr CutlassPyOperation operation_of = CutlassPyOperation(-1);
template <>
inline constexpr CutlassPyOperation operation_of<CutlassPyGemm> = CUTLASS_PY_GEMM;

template <class Launcher>
inline constexpr auto facts_from = Launcher::facts();

// The functions of CutlassPyKernel by those of a launcher.
template <class Launcher, class Arguments>
struct Functions {
  static size_t workspace_size(const void* arguments, const CutlassPyLaunch* launch) {
    return Launcher::workspace_size(*static_cast<const Arguments*>(arguments), *launch);
  }
  static int run(const void* arguments, const CutlassPyLaunch* launch) {
    return Launcher::run(*static_cast<const Arguments*>(arguments), *launch);
  }
};

// The descriptor of one kernel: facts from the type, functions from its launcher.
template <class Launcher, class Arguments>
constexpr CutlassPyKernel describe(const char* name, int (*)(const Arguments&, const CutlassPyLaunch&)) {
  using Of = Functions<Launcher, Arguments>;
  return {name,   &facts_from<Launcher>, &Of::workspace_size, &Of::run, &Launcher::registers, operation_of<Arguments>,
          nullptr};
}

// Likewise of one whose functions serve many kernels, each by its context.
template <class Launcher>
constexpr CutlassPyKernel describe(const char* name, int (*)(const void*, const CutlassPyLaunch*)) {
  return {name,
          &facts_from<Launcher>,
          &Launcher::workspace_size,
          &Launcher::run,
          &Launcher::Function::registers,
          Launcher::operation,
          &Launcher::context};
}

}  // namespace cutlass_py

// Defines the symbol `cutlass_py_<name>` from a launcher type; the generated library list refers to it.
#define CUTLASS_PY_KERNEL(NAME, ...) \
  extern "C" const CutlassPyKernel cutlass_py_##NAME = ::cutlass_py::describe<__VA_ARGS__>(#NAME, &__VA_ARGS__::run);
