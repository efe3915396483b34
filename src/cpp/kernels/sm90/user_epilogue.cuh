// Epilogues that users write, as our own kernels have them: the traced function on a thread's numbers.
//
// A program is what lean_cpp.py writes:
//
//   template <bool fast, class T> static __device__ void compute(const T* in, T* out)   in[0] is the sum, out[0] is D
//   static constexpr int ins, outs, reads, operands; beside[]           as Fused has them
//   using Matrices = Dtypes<...>                                        that are read, then those that are written
//   using Reductions = sm90::Reductions<...>                            in the order of their operands
//   template <class Load> static __device__ void loads(Load& load)      load.number(in, operand), .vector<T>, .matrix
//   template <class Store> static __device__ void stores(Store& store)  store.matrix(out, matrix)
#pragma once

#include "kernels/common/fp8.cuh"
#include "kernels/sm90/gemm.cuh"

namespace cutlass_py {
namespace user {

// x as a narrower type holds it.
template <class Narrow, class T>
__device__ T rounded(T x) {
  if constexpr (std::is_same_v<Narrow, numbers::E4m3>) return T(from_e4m3(to_fp8(float(x), kE4m3)));
  if constexpr (std::is_same_v<Narrow, numbers::E5m2>) return T(from_e5m2(to_fp8(float(x), kE5m2)));
  if constexpr (sizeof(typename Narrow::Type) == 2) {
    return T(Narrow::value(typename Narrow::Type(sm90::packed<Narrow>(float(x), 0.0f))));
  }
}

}  // namespace user

namespace sm90 {

template <class Program, bool fast>
struct UserEpilogue {
  using Matrices = typename Program::Matrices;
  static constexpr int reads = Program::reads, operands = Program::operands;
  static constexpr const Beside* beside = Program::beside;
  using Reductions = typename Program::Reductions;
  static constexpr bool short_code = false;
  static constexpr int vectors = 0;  // staged
  using Number = float;

  const Operand* given;

  __device__ UserEpilogue(const EpilogueArguments&, const Operand* given) : given(given) {}

  // take(results) sees them all, of which some are reduced.
  template <class Take>
  __device__ void apply(float (&z)[kUnit], float (*matrix)[kUnit], const Corner& at, const Staged&, Take take) const {
    float in[Program::ins][kUnit], out[Program::outs][kUnit];
    Loads loads{given, matrix, at, in};
#pragma unroll
    for (int i = 0; i < kUnit; ++i) in[0][i] = z[i];
    Program::loads(loads);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      float x[Program::ins], y[Program::outs];
#pragma unroll
      for (int j = 0; j < Program::ins; ++j) x[j] = in[j][i];
      Program::template compute<fast, float>(x, y);
#pragma unroll
      for (int j = 0; j < Program::outs; ++j) out[j][i] = y[j];
    }
#pragma unroll
    for (int i = 0; i < kUnit; ++i) z[i] = out[0][i];
    Stores stores{matrix, out};
    Program::stores(stores);
    take(out);
  }

 private:
  struct Loads {
    const Operand* given;
    float (*matrices)[kUnit];
    const Corner& at;
    float (*in)[kUnit];

    // One for all, given as such or in device memory.
    __device__ void number(int place, int operand) {
      const Operand& x = given[operand];
      const float value = x.vector.data ? *static_cast<const float*>(x.vector.data) : x.value;
#pragma unroll
      for (int i = 0; i < kUnit; ++i) in[place][i] = value;
    }
    template <class T>
    __device__ void vector(int place, int operand) {
      given[operand].vector.template each<T>(at, [&](int i, float x) { in[place][i] = x; });
    }
    __device__ void matrix(int place, int number) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) in[place][i] = matrices[number][i];
    }
  };
  struct Stores {
    float (*matrices)[kUnit];
    float (*out)[kUnit];

    __device__ void matrix(int place, int number) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) matrices[number][i] = out[place][i];
    }
  };
};

}  // namespace sm90
}  // namespace cutlass_py
