// What epilogues that users write have in common on both generations of kernels.
#pragma once

#include "abi/kernel.h"
#include "cutlass/numeric_conversion.h"
#include "kernels/common/activation.cuh"

namespace cutlass_py {
namespace user {

template <class... Items>
struct List {};

inline const CutlassPyOperand& operand(const CutlassPyGemm& g, int index) { return g.epilogue.user[index]; }

// The program on fragments, element by element.
template <class Program, bool fast, class T, int N, int ins, int outs>
__device__ void evaluate(const cutlass::Array<T, N> (&in)[ins], cutlass::Array<T, N> (&out)[outs]) {
#pragma unroll
  for (int e = 0; e < N; ++e) {
    T x[ins], y[outs];
#pragma unroll
    for (int i = 0; i < ins; ++i) x[i] = in[i][e];
    Program::template compute<fast, T>(x, y);
#pragma unroll
    for (int i = 0; i < outs; ++i) out[i][e] = y[i];
  }
}

// x as a narrower type holds it.
template <class Narrow, class T>
__device__ T rounded(T x) {
  using cutlass::FloatRoundStyle;
  using cutlass::NumericConverter;
  const Narrow narrow = NumericConverter<Narrow, float, FloatRoundStyle::round_to_nearest>{}(float(x));
  return T(NumericConverter<float, Narrow, FloatRoundStyle::round_to_nearest>{}(narrow));
}

}  // namespace user
}  // namespace cutlass_py
