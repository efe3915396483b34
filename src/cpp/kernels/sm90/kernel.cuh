// The kernel: one thread keeps the stages full, two warpgroups multiply what is there and store it.
//
// Blocks stay and take tile after tile (scheduler.cuh). Warpgroups share a tile, or take turns: one multiplies while
// the other one finishes and stores. Blocks of a cluster load parts of what they all read, each for the others.
#pragma once

#include "kernels/sm90/part.cuh"

namespace cutlass_py::sm90 {

// ------------------------------------------------------------------------------------------------ loading

// A part of an operand's line of k for all blocks that read it: of `extent` rows every one of `sharing` blocks loads
// its share, which is the `part`-th.
template <bool along, int extent, int sharing>
struct OperandLoad {
  static constexpr int share = extent / sharing, panel = along ? panel_of(extent) : 0;
  static constexpr int depth = 64 / sharing;  // of k, where it is read along its rows

  const TensorMap& map;
  int part;
  uint16_t blocks;

  __device__ void box(Address to, Address barrier, int x, int y, int batch) const {
    if constexpr (sharing > 1) {
      load(to, map, barrier, x, y, batch, blocks);
    } else {
      load(to, map, barrier, x, y, batch);
    }
  }
  __device__ void line(Address to, Address barrier, int row, int k, int batch) const {
    if constexpr (along) {
#pragma unroll
      for (int i = 0; i < extent / panel; ++i) {
        box(to + (i * 64 + part * depth) * panel * 2, barrier, row + i * panel, k + part * depth, batch);
      }
    } else {
      box(to + part * share * kLine, barrier, k, row + part * share, batch);
    }
  }
};

// By one thread.
template <class X>
__device__ void load_tiles(const Parameters& p, const SharedMemory<X>& shared, const Place<X>& place) {
  uint16_t row = 0, column = 0;  // blocks that read the same rows, and the same columns
#pragma unroll
  for (int i = 0; i < X::cluster_n; ++i) row |= uint16_t(1 << (place.m + i * X::cluster_m));
#pragma unroll
  for (int i = 0; i < X::cluster_m; ++i) column |= uint16_t(1 << (i + place.n * X::cluster_m));
  const OperandLoad<X::left_along, X::M, X::cluster_n> left{p.left, place.n, row};
  const OperandLoad<X::right_along, X::N, X::cluster_m> right{p.right, place.m, column};
  prefetch(p.left), prefetch(p.right);
  if constexpr (!X::direct) prefetch(p.d.map);

  Pipeline<X> at;
  for (Tiles tiles(p.order, X::cluster); tiles.take();) {
    const int m = (tiles.m * X::cluster_m + place.m) * X::M, n = (tiles.n * X::cluster_n + place.n) * X::N;
    const int left_batch = tiles.batch * p.left_batch, right_batch = tiles.batch * p.right_batch;
    for (int step = 0; step < p.steps; ++step, at.advance()) {
      wait(shared.empty(at.stage), at.parity ^ 1);
      arrive_expecting(shared.full(at.stage), X::stage_bytes);
#pragma unroll
      for (int i = 0; i < X::lines; ++i) {
        const int k = (step * X::lines + i) * X::line;
        left.line(shared.left(at.stage) + i * X::left_line, shared.full(at.stage), m, k, left_batch);
        right.line(shared.right(at.stage) + i * X::right_line, shared.full(at.stage), n, k, right_batch);
      }
    }
  }
  let_successor_begin();
}

// ------------------------------------------------------------------------------------------------ multiplying

// Tells all blocks that load into a stage that this one has no more use for it.
template <class X>
struct Release {
  static constexpr int sharing = X::cluster_m + X::cluster_n - 1;  // blocks of the row and of the column
  static constexpr int warps = X::pingpong ? 4 : 8;
  const SharedMemory<X>& shared;
  const int lane;
  int rank;  // that this lane tells

  __device__ Release(const SharedMemory<X>& shared, const Place<X>& place)
      : shared(shared), lane(int(threadIdx.x) % 32) {
    const int other = lane - X::cluster_n;
    rank = lane < X::cluster_n ? place.m + lane * X::cluster_m : other + (other >= place.m) + place.n * X::cluster_m;
  }
  __device__ void operator()(int stage) const {
    if (lane >= sharing) return;
    if constexpr (X::cluster > 1) {
      arrive(shared.empty(stage), rank);
    } else {
      arrive(shared.empty(stage));
    }
  }
};

// The sums of a tile's rows that are this warpgroup's. Gives the stage whose products may not be done.
template <class X>
__device__ int multiply_tile(typename X::Sum (&sums)[X::blocks][X::N / 2], const SharedMemory<X>& shared,
                             const Release<X>& release, Pipeline<X>& at, int steps, int first_row) {
  constexpr int block = X::left_along ? 64 * 64 * 2 : 64 * kLine;  // bytes of 64 rows
  int before = 0;
  for (int step = 0; step < steps; ++step, at.advance()) {
    wait(shared.full(at.stage), at.parity);
    const uint64_t left = descriptor<X::left_along, 64>(shared.left(at.stage) + first_row / 64 * block);
    const uint64_t right = descriptor<X::right_along, X::panel>(shared.right(at.stage));
    begin_products();
#pragma unroll
    for (int i = 0; i < X::lines; ++i) {
#pragma unroll
      for (int j = 0; j < X::blocks; ++j) {
        X::Product::multiply(sums[j], left + (i * X::left_line + j * block) / 16, right + i * X::right_line / 16,
                             step | i);
      }
    }
    commit_products();
    wait_for_products<1>();
    if (step) release(before);
    before = at.stage;
  }
  return before;
}

// Finishes a tile's sums and stores them, part by part.
template <class X>
__device__ void finish_tile(const typename X::Sum (&sums)[X::blocks][X::N / 2], const typename X::Epilogue& epilogue,
                            Parts<X>& parts, const PartPlace& tile) {
  const int thread = int(threadIdx.x) % 128;
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;  // of this thread, in a unit
  const auto place = [&](int block, int part) { return PartPlace{tile.m + block * 64, tile.n + part, tile.batch}; };
#pragma unroll
  for (int block = 0; block < X::blocks; ++block) {
#pragma unroll
    for (int part = 0; part < X::N; part += X::columns) {
      const bool ends_row = part + X::columns == X::N;
      const PartPlace here = place(block, part), next = ends_row ? place(block + 1, 0) : place(block, part + X::columns);
      parts.begin(here, next, !(ends_row && block + 1 == X::blocks));
#pragma unroll
      for (int unit = 0; unit < X::columns; unit += kUnitColumns) {
        float z[kUnit];
        typename Parts<X>::Beside beside;
#pragma unroll
        for (int i = 0; i < kUnit; ++i) z[i] = float(sums[block][(part + unit) / 2 + i]);
        parts.get(beside, unit);
        epilogue.apply(z, beside, {here.m + row, here.n + unit + column, tile.batch, parts.p.end_m, parts.p.end_n});
        parts.put(z, beside, unit);
      }
      parts.send(here);
    }
  }
}

// By a warpgroup.
template <class X>
__device__ void compute_tiles(const typename Parts<X>::Given& p, const SharedMemory<X>& shared, const Place<X>& place,
                              int warpgroup) {
  const Release<X> release(shared, place);
  const typename X::Epilogue epilogue(p.epilogue);
  Parts<X> parts(p, shared, warpgroup);
  const int first_row = X::pingpong ? 0 : warpgroup * X::rows;
  Pipeline<X> at;
  uint32_t turn = warpgroup ^ 1;  // the first warpgroup begins
  int i = 0;
  for (Tiles tiles(p.order, X::cluster); tiles.take(); ++i) {
    if (X::pingpong && i % 2 != warpgroup) {
      at.advance(p.steps);
      continue;
    }
    const PartPlace tile{(tiles.m * X::cluster_m + place.m) * X::M + first_row,
                         (tiles.n * X::cluster_n + place.n) * X::N, tiles.batch};
    parts.request(tile);
    typename X::Sum sums[X::blocks][X::N / 2];
    if constexpr (X::pingpong) {
      wait(shared.turn(warpgroup), turn);
      turn ^= 1;
    }
    const int last = multiply_tile(sums, shared, release, at, p.steps, first_row);
    if constexpr (X::pingpong) arrive(shared.turn(warpgroup ^ 1));
#pragma unroll
    for (auto& block : sums) X::Product::wait(block);
    release(last);
    finish_tile<X>(sums, epilogue, parts, tile);
  }
  parts.finish();
}

// ------------------------------------------------------------------------------------------------ all of it

template <class X>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ ParametersWith<X::Matrices::count> p) {
  const SharedMemory<X> shared(dynamic_shared_memory());
  const Place<X> place;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < X::stages; ++stage) {
      init_barrier(shared.full(stage), 1);
      init_barrier(shared.empty(stage), Release<X>::sharing * Release<X>::warps);
    }
    for (int i = 0; i < kWarpgroups; ++i) {
      init_barrier(shared.turn(i), 128);
      for (int j = 0; j < X::buffers; ++j) init_barrier(shared.arrived(i, j), 1);
    }
    publish_barriers();
  }
  synchronize_block();
  if constexpr (X::cluster > 1) synchronize_cluster();
  wait_for_predecessor();

  const int warp = warp_index();
  if (warp < 4) {
    release_registers<kLoaderRegisters>();
    if (threadIdx.x == 0) load_tiles(p, shared, place);
  } else {
    claim_registers<kRegisters>();
    compute_tiles(p, shared, place, warp / 4 - 1);
  }
  // Others may still tell this block of a stage, or load into it for this block's sake.
  if constexpr (X::cluster > 1) synchronize_cluster();
}

}  // namespace cutlass_py::sm90
