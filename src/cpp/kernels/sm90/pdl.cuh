// When a kernel lets its successor begin, where launches overlap.
//
// To be included before CUTLASS's kernels, which call what the name means by then. Those that are included before, as
// the device types of users are, keep CUTLASS's function.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/arch/grid_dependency_control.h"

namespace cutlass::arch {

// CUTLASS's kernels call it before the epilogue of their last tile, and the pingpong kernel at once where its second
// group of warps has no tile. The successor's blocks then go wherever a multiprocessor comes free, so that blocks that
// read the same rows are no neighbours, and the more so the longer such kernels follow each other. Pairs of blocks,
// which share a load, gain from the early begin, and so do single ones that leave half of the GPU free. Others take up
// to a quarter longer (docs/performance/launches.md), and end first.
CUTLASS_DEVICE void launch_dependent_grids_early() {
  constexpr unsigned half = 132 / 2;  // of an H100's or H200's multiprocessors
  const dim3 cluster = cute::cluster_shape();
  const unsigned blocks = cluster.x * cluster.y;
  if (blocks == 2 || (blocks == 1 && gridDim.x * gridDim.y * gridDim.z <= half)) launch_dependent_grids();
}

}  // namespace cutlass::arch

#define launch_dependent_grids launch_dependent_grids_early  // until cutlass3x/gemm.cuh has included the kernels
