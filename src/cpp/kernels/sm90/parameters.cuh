// What a kernel is told, whatever its design: written by launch.h, read by kernel.cuh.
#pragma once

#include "kernels/sm90/epilogue.cuh"
#include "kernels/sm90/groups.cuh"
#include "kernels/sm90/instructions.cuh"

namespace cutlass_py::sm90 {

// D, or what an epilogue takes beside it. A matrix that lies like D: as the copy engine knows it, or, where that
// cannot, as elements. Of users' epilogues also vectors and numbers.
struct Operand {
  TensorMap map;
  void* data;          // null for a matrix that is not there
  int64_t row, batch;  // strides in elements
  int32_t batched;     // 0 for a matrix that all products share
  Vector vector;
  float value;
};

// Strides in elements: from one line of k to the next, from one group of rows or columns to the next.
struct BlockFactors {
  const float* data;
  int64_t k, along, batch;
};

// An operand whose lines begin anywhere, as threads read it: `outer` lines of `inner` bytes, so many bytes apart.
struct UnalignedOperand {
  const char* data;
  int64_t line, batch, inner;
  int32_t outer;
};

struct Parameters {
  union {  // threads load the operands, or the copy engine does
    TensorMap left;
    UnalignedOperand left_unaligned;
  };
  union {
    TensorMap right;
    UnalignedOperand right_unaligned;
  };
  Operand d;
  TileOrder order;
  int32_t steps, slice_steps;       // stages of k, and of a slice
  Divisor slices;                   // of a tile whose k is split
  int32_t left_batch, right_batch;  // 0 for one that all products share
  int32_t end_m, end_n;             // rows of the left operand, columns of the right one
  bool turned;                      // D's rows are the right operand's columns
  Groups groups;
  int32_t group_tile, group_others;  // as GroupedTiles has them
  bool groups_right;                 // they divide the right operand's columns
  EpilogueArguments epilogue;
  BlockFactors left_factors, right_factors;
};

// Where rows and columns end that a tile may write: those of the product, or of its group.
template <bool grouped>
struct Ends {
  const Parameters& p;

  __device__ explicit Ends(const Parameters& p) : p(p) {}
  __device__ int m() const { return p.end_m; }
  __device__ int n() const { return p.end_n; }
};
template <>
struct Ends<true> {
  int end_m, end_n;

  __device__ explicit Ends(const Parameters& p) : end_m(p.end_m), end_n(p.end_n) {}
  __device__ int m() const { return end_m; }
  __device__ int n() const { return end_n; }
};

// With what an epilogue takes beside D.
template <int operands>
struct ParametersWith : Parameters {
  Operand operand[operands];
};
template <>
struct ParametersWith<0> : Parameters {
  static constexpr const Operand* operand = nullptr;
};

}  // namespace cutlass_py::sm90
