// CUDA's cooperative groups, of them the grid, for the compiler of the host.
#pragma once

#include "threads.h"

namespace cooperative_groups {

struct grid_group {
  void sync() const { simulated::synchronize_grid(); }
};
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
