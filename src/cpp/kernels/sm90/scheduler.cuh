// Which tiles a cluster computes, and in which order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cutlass_py::sm90 {

// Division by a number that is known before the launch: of what is below 2^31, by a multiplication (Granlund and
// Montgomery, Division by Invariant Integers using Multiplication, 1994).
struct Divisor {
  int32_t by;
  uint32_t factor, shift;

  Divisor() = default;
  explicit Divisor(int32_t by) : by(by), shift(31) {  // at least 1
    while (int64_t(by) << 31 > int64_t(1) << shift) ++shift;
    factor = uint32_t(((uint64_t(1) << shift) + uint32_t(by) - 1) / uint32_t(by));
  }
  __device__ int quotient(int x) const { return int(uint64_t(uint32_t(x)) * factor >> shift); }
};

// The tiles of a batch of matrices, in bands: so many of them side by side, then the next ones along the other axis.
// Neighbours that run at the same time share rows or columns that way.
struct TileOrder {
  int32_t count;         // tiles of clusters, in all matrices
  int32_t bands;         // as wide as the first one
  bool along_m;          // which way they go
  Divisor matrix, band;  // tiles of one
  Divisor width[2];      // of a band, and of the last one, if that is narrower

  TileOrder() = default;
  TileOrder(int64_t tiles_m, int64_t tiles_n, int64_t batch, int32_t band_width, bool along_m)
      : count(int32_t(tiles_m * tiles_n * batch)), along_m(along_m) {
    const int32_t across = int32_t(along_m ? tiles_n : tiles_m), along = int32_t(along_m ? tiles_m : tiles_n);
    const int32_t wide = across < band_width ? across : band_width;
    bands = across / wide;
    matrix = Divisor(across * along), band = Divisor(wide * along);
    width[0] = Divisor(wide), width[1] = Divisor(across % wide ? across % wide : wide);
  }

  // The i-th one.
  __device__ void at(int i, int& m, int& n, int& batch) const {
    batch = matrix.quotient(i);
    i -= batch * matrix.by;
    const int whole = band.quotient(i), rest = i - whole * band.by;
    const Divisor across = whole < bands ? width[0] : width[1];
    const int step = across.quotient(rest), place = whole * width[0].by + rest - step * across.by;
    m = along_m ? step : place;
    n = along_m ? place : step;
  }
};

// What a cluster takes, or one of the `takers` of each: every so many-th tile. (m, n, batch) is one while some are
// left.
struct Tiles {
  const TileOrder& order;
  const int step;
  int i, m, n, batch;

  __device__ Tiles(const TileOrder& order, int first, int step) : order(order), step(step), i(first) {
    order.at(i, m, n, batch);
  }
  __device__ static Tiles of_cluster(const TileOrder& order, int blocks, int takers = 1, int taker = 0) {
    const int clusters = int(gridDim.x) / blocks;
    return {order, int(blockIdx.x) / blocks + clusters * taker, clusters * takers};
  }
  // Where a cluster has a tile to itself, and a block of it a slice of k.
  __device__ static Tiles of_slices(const TileOrder& order, const Divisor& slices) {
    return {order, slices.quotient(int(blockIdx.x)), order.count};
  }
  __device__ bool left() const { return i < order.count; }
  __device__ void advance() { order.at(i += step, m, n, batch); }
};

// The stages of k that a block has of its tile: the first, and the one behind the last.
struct Steps {
  int begin, end;

  __device__ static Steps all(int steps) { return {0, steps}; }
  // The i-th slice, of `each` stages; the last ones may have fewer, or none.
  __device__ static Steps slice(int steps, int i, int each) {
    return {min(i * each, steps), min((i + 1) * each, steps)};
  }
};

}  // namespace cutlass_py::sm90
