// A kernel as a cubin that brings its own descriptor, so that none of it is compiled for the host: as NVRTC makes it,
// and cubin.cu loads it.
#pragma once

#include "abi/kernel.h"
#include "kernels/sm90/design.cuh"

namespace cutlass_py::sm90 {

// Under these names in the cubin's table of symbols.
#define CUTLASS_PY_CUBIN_KERNEL cutlass_py_kernel
#define CUTLASS_PY_CUBIN_JOINING cutlass_py_joining_kernel
#define CUTLASS_PY_CUBIN_DESCRIPTOR cutlass_py_descriptor

// Of fewer characters than it has room for: no constant is made of a longer one.
template <int room>
struct Text {
  char characters[room];

  constexpr Text& operator=(const char* from) {
    for (int i = 0; from[i]; ++i) characters[i] = from[i], characters[i + 1] = 0;
    return *this;
  }
};

// What a descriptor means, and the parameters of a kernel: one more whenever launch.h would launch another wrongly.
constexpr int32_t kCubinVersion = CUTLASS_PY_ABI << 16 | 7;

// Plain, and without addresses.
struct CubinDescriptor {
  int32_t version, bytes;  // of this structure
  Text<256> name;
  Text<8> a, b, acc, c, d;
  CutlassPyGemmFacts facts;  // but for these texts
  Shape shape;
};

constexpr CubinDescriptor describe_cubin(const char* name, CutlassPyGemmFacts facts, const Shape& shape) {
  CubinDescriptor x{};
  x.version = kCubinVersion, x.bytes = int32_t(sizeof x);
  x.name = name;
  x.a = facts.a, x.b = facts.b, x.acc = facts.acc, x.c = facts.c, x.d = facts.d;
  facts.a = facts.b = facts.acc = facts.c = facts.d = nullptr;
  x.facts = facts, x.shape = shape;
  return x;
}

}  // namespace cutlass_py::sm90

#ifdef __CUDACC_RTC__
namespace cutlass_py {

template <class Config>
using LeanGemm = LeanFacts<Config>;

}  // namespace cutlass_py

#define CUTLASS_PY_KERNEL(NAME, ...)                                                                        \
  extern "C" __global__ void __launch_bounds__(cutlass_py::sm90::kThreads, 1) CUTLASS_PY_CUBIN_KERNEL(      \
      const __grid_constant__ cutlass_py::sm90::ParametersWith<__VA_ARGS__::X::Epilogue::operands> p) {     \
    cutlass_py::sm90::compute<__VA_ARGS__::X>(p);                                                           \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(cutlass_py::sm90::kJoiningThreads) CUTLASS_PY_CUBIN_JOINING( \
      const __grid_constant__ cutlass_py::sm90::AllJoined<__VA_ARGS__::X::Epilogue::Reductions::count> p) { \
    cutlass_py::sm90::join_all(__VA_ARGS__::X::Epilogue::Reductions(), p);                                  \
  }                                                                                                         \
  extern "C" __constant__ cutlass_py::sm90::CubinDescriptor CUTLASS_PY_CUBIN_DESCRIPTOR =                   \
      cutlass_py::sm90::describe_cubin(#NAME, __VA_ARGS__::facts(), __VA_ARGS__::shape);
#endif
