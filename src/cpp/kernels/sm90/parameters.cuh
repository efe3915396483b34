// What a kernel is told, whatever its design: written by launch.h, read by kernel.cuh.
#pragma once

#include "kernels/sm90/epilogue.cuh"
#include "kernels/sm90/instructions.cuh"
#include "kernels/sm90/scheduler.cuh"

namespace cutlass_py::sm90 {

struct Parameters {
  TensorMap left, right, d;
  TileOrder order;
  int32_t steps;                    // stages of k
  int32_t left_batch, right_batch;  // 0 for one that all products share
  int32_t end_m, end_n;             // rows of the left operand, columns of the right one
  bool turned;                      // D's rows are the right operand's columns
  EpilogueArguments epilogue;
};

}  // namespace cutlass_py::sm90
