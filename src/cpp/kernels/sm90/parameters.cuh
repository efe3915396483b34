// What a kernel is told, whatever its design: written by launch.h, read by kernel.cuh.
#pragma once

#include "kernels/sm90/epilogue.cuh"
#include "kernels/sm90/instructions.cuh"
#include "kernels/sm90/scheduler.cuh"

namespace cutlass_py::sm90 {

// D, or a matrix that lies like it: as the copy engine knows it, or, where that cannot, as elements. The latter lies
// where `data` is; strides are in elements.
struct Matrix {
  TensorMap map;
  void* data;
  int64_t row, batch;
  int32_t batched;  // 0 for one that all products share
  int32_t present;
};

// Strides in elements: from one line of k to the next, from one group of rows or columns to the next.
struct BlockFactors {
  const float* data;
  int64_t k, along, batch;
};

struct Parameters {
  TensorMap left, right;
  Matrix d;
  TileOrder order;
  int32_t steps;                    // stages of k
  int32_t slices;                   // of them, of a tile whose k is split
  int32_t left_batch, right_batch;  // 0 for one that all products share
  int32_t end_m, end_n;             // rows of the left operand, columns of the right one
  bool turned;                      // D's rows are the right operand's columns
  EpilogueArguments epilogue;
  BlockFactors left_factors, right_factors;
};

// With the matrices that an epilogue reads and writes beside D; the host always has room for most.
constexpr int kMostMatrices = 8;
template <int matrices>
struct ParametersWith : Parameters {
  Matrix matrix[matrices];
};
template <>
struct ParametersWith<0> : Parameters {
  static constexpr const Matrix* matrix = nullptr;
};

}  // namespace cutlass_py::sm90
