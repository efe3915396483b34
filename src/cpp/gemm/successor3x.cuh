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
// which share a load, gain from the early begin; single blocks and clusters of four take up to a quarter longer
// (docs/design.md). All but pairs end first.
CUTLASS_DEVICE void launch_dependent_grids_of_pairs() {
  const dim3 cluster = cute::cluster_shape();
  if (cluster.x * cluster.y == 2) launch_dependent_grids();
}

}  // namespace cutlass::arch

#define launch_dependent_grids launch_dependent_grids_of_pairs  // until api3x.cuh has included the kernels
