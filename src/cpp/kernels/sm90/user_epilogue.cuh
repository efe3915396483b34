// Epilogues that users write, as our own kernels have them: the traced function on a thread's numbers.
//
// A program is what lean_cpp.py writes:
//
//   template <bool fast, class T> static __device__ void compute(const T* in, T* out)   in[0] is the sum, out[0] is D
//   static constexpr int ins, outs, vectors, reads, operands; beside[]  as Fused has them
//   using Matrices = Dtypes<...>                                        that are read, then those that are written
//   using Reductions = sm90::Reductions<...>                            in the order of their operands
//   template <class Use> static __device__ void each_number(Use use)    use(in, operand)
//   template <class Use> static __device__ void each_vector(Use use)    use(in, vector, operand, its dtype)
//   template <class Use> static __device__ void each_read(Use use)      use(in, matrix)
//   template <class Use> static __device__ void each_written(Use use)   use(out, matrix)
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
  static constexpr int most_straight(int held) { return held > 160 ? 1 : 2; }
  static constexpr bool may_be_linear(int) { return false; }
  static constexpr int vectors = Program::vectors;
  using Lines = sm90::Lines<vectors, 0>;
  using Number = float;

  float numbers[Program::ins];  // of `in` those that are one for all

  // Given as such, or in device memory.
  __device__ UserEpilogue(const EpilogueArguments&, const Operand* given) {
    Program::each_number([&](int place, int operand) {
      const Operand& x = given[operand];
      numbers[place] = x.vector.data ? *static_cast<const float*>(x.vector.data) : x.value;
    });
  }

  template <class Use>
  static __device__ void each_vector(const EpilogueArguments&, const Operand* given, Use use) {
    Program::each_vector(
        [&](int, int vector, int operand, auto dtype) { use(vector, vector, given[operand].vector, dtype); });
  }
  static __device__ bool has_vectors(const EpilogueArguments&) { return vectors > 0; }

  // As Fused's; take(results, i) sees them all, of which some are reduced.
  template <int units, class Staged>
  __device__ void scale(float (&)[units][kUnit], const Staged&, int) const {}
  template <int units, class Matrix, class Staged, class Take>
  __device__ void finish(float (&z)[units][kUnit], Matrix (&matrices)[units], const Staged& lines, int column,
                         Take take) const {
    float rows[Lines::room][2];
#pragma unroll
    for (int line = 0; line < vectors; ++line) lines.get_rows(line, rows[line]);
#pragma unroll
    for (int unit = 0; unit < units; ++unit) {
      float columns[Lines::room][4], out[Program::outs][kUnit];
#pragma unroll
      for (int line = 0; line < vectors; ++line) lines.get_columns(line, column + unit * kUnitColumns, columns[line]);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        float x[Program::ins], y[Program::outs];
        x[0] = z[unit][i];
        Program::each_number([&](int place, int) { x[place] = numbers[place]; });
        Program::each_vector([&](int place, int vector, int, auto) {
          x[place] = rows[vector][row_of(i)] + columns[vector][column_of(i)];
        });
        Program::each_read([&](int place, int number) { x[place] = matrices[unit][number][i]; });
        Program::template compute<fast, float>(x, y);
#pragma unroll
        for (int j = 0; j < Program::outs; ++j) out[j][i] = y[j];
      }
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        z[unit][i] = out[0][i];
        Program::each_written([&](int place, int number) { matrices[unit][number][i] = out[place][i]; });
      }
      take(out, unit);
    }
  }
};

}  // namespace sm90
}  // namespace cutlass_py
