// Which tiles a cluster computes, and in which order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cutlass_py::sm90 {

// The tiles of a batch of matrices, in bands: `band` of them side by side, then the next ones along the other axis.
// Neighbours that run at the same time share rows or columns that way.
struct TileOrder {
  int32_t tiles_m, tiles_n, count;  // of clusters; of all matrices
  int32_t band;
  bool along_m;  // which way bands go

  // The i-th one.
  __device__ void at(int i, int& m, int& n, int& batch) const {
    const int across = along_m ? tiles_n : tiles_m, along = along_m ? tiles_m : tiles_n;
    batch = i / (across * along);
    i -= batch * across * along;
    const int whole = i / (band * along), rest = i - whole * band * along;
    const int width = min(band, across - whole * band), step = rest / width;
    const int place = whole * band + rest - step * width;
    m = along_m ? step : place;
    n = along_m ? place : step;
  }
};

// A cluster takes every so many-th one.
struct Tiles {
  const TileOrder& order;
  int next, step;
  int m = 0, n = 0, batch = 0;

  __device__ Tiles(const TileOrder& order, int cluster)
      : order(order), next(int(blockIdx.x) / cluster), step(int(gridDim.x) / cluster) {}

  __device__ bool take() {
    if (next >= order.count) return false;
    order.at(next, m, n, batch);
    next += step;
    return true;
  }
};

// The stages of k that a block has of its tile: the first, and the one behind the last.
struct Steps {
  int begin, end;

  __device__ static Steps all(int steps) { return {0, steps}; }
  __device__ static Steps slice(int steps, int i, int slices) { return {i * steps / slices, (i + 1) * steps / slices}; }
};

}  // namespace cutlass_py::sm90
