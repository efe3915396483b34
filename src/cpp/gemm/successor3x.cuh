// When a kernel lets its successor begin, where launches overlap.
//
// To be included before CUTLASS's kernels: those call what is declared by then.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/arch/grid_dependency_control.h"

namespace cutlass::arch {

// CUTLASS's kernels let it begin when their last multiplication is queued, or at once where a group of warps has none.
// The successor's blocks then go wherever a multiprocessor comes free, so that blocks that read the same rows are no
// neighbours, and the more so the longer such kernels follow each other. Pairs of blocks, which share a load, gain from
// the early begin; single blocks and clusters of four lose up to a third (docs/design.md), and end first.
CUTLASS_DEVICE void launch_dependent_grids_of_pairs() {
  const dim3 cluster = cute::cluster_shape();
  if (cluster.x * cluster.y == 2) launch_dependent_grids();
}

}  // namespace cutlass::arch

#define launch_dependent_grids launch_dependent_grids_of_pairs
