// The kernel: one thread keeps the stages full, two warpgroups multiply what is there and store it.
//
// Blocks stay and take tile after tile (scheduler.cuh). Warpgroups share a tile, or take turns: one multiplies while
// the other one finishes and stores. Blocks of a cluster load parts of what they all read, each for the others.
#pragma once

#include "kernels/sm90/multiply.cuh"
#include "kernels/sm90/reductions.cuh"

namespace cutlass_py::sm90 {

// Finishes a part of a tile's sums and stores it: sums(first, use) calls use(unit, place, sum) with those of the units
// from that column on which are finished straight on.
template <class X, class Sums>
__device__ void finish_part(const PartPlace& here, const typename Vectors<X>::Staged& lines,
                            const typename X::Epilogue& epilogue, Parts<X>& parts, Sums sums) {
  Totals<X, typename X::Epilogue::Reductions> totals;
#pragma unroll 1
  for (int first = 0; first < X::columns; first += X::straight * kUnitColumns) {
    const auto unit = [&](int i) { return first + i * kUnitColumns; };
    typename Parts<X>::Numbers beside[X::straight];
    typename X::Number z[X::straight][kUnit];
#pragma unroll
    for (int i = 0; i < X::straight; ++i) parts.get(beside[i], unit(i));
    const auto taken = [&](const float (*results)[kUnit], int i) {
      const Corner at{here.m + own_row(), here.n + unit(i) + own_column(), here.batch, parts.p.end_m, parts.p.end_n};
      totals.take(parts, results, at, unit(i));
    };
    epilogue.apply(z, beside, lines, first, [&](auto use) { sums(first, use); }, taken);
    if (first == 0) parts.claim();  // no sooner: meanwhile the part before the last one leaves
#pragma unroll
    for (int i = 0; i < X::straight; ++i) parts.put(z[i], beside[i], unit(i));
  }
  parts.send(here);
  totals.leave(parts, here);
}

// Likewise, of sums that have nothing but a factor: written out.
template <class X, class Sums>
__device__ void store_part(const PartPlace& here, const typename X::Epilogue& epilogue, Parts<X>& parts, Sums sums) {
  typename X::Number z[X::columns / kUnitColumns][kUnit];
  sums(0, [&](int i, int j, typename X::Number x) { z[i][j] = epilogue.scaled_alone(x); });
  parts.claim();
#pragma unroll
  for (int i = 0; i < X::columns / kUnitColumns; ++i) parts.put(z[i], {}, i * kUnitColumns);
  parts.send(here);
}

// Those of the i-th `units` of a tile's units, from `begin` to `end`: by branches, for registers have no index. What
// branches end with alike the compiler moves behind them, and copies registers in each: so `use` is best in assembly.
template <class X, int units, int begin, int end, class Use>
__device__ void pick(const typename Multiply<X>::Sums (&sums)[X::blocks], int i, Use use) {
  constexpr int middle = (begin + end) / 2, in_row = X::N / kUnitColumns;
  if constexpr (end - begin == 1) {
#pragma unroll
    for (int j = 0; j < units; ++j) {
      constexpr int first = begin * units;
#pragma unroll
      for (int k = 0; k < kUnit; ++k) {
        use(j, k, typename X::Number(X::Sum::value(sums[first / in_row], (first % in_row + j) * kUnit + k)));
      }
    }
  } else if (i < middle) {
    pick<X, units, begin, middle>(sums, i, use);
  } else {
    pick<X, units, middle, end>(sums, i, use);
  }
}

// The sums of so many units of one of a tile's parts, from a column on.
template <class X, int units>
struct PartSums {
  static constexpr int width = units * kUnitColumns;
  const typename Multiply<X>::Sums (&sums)[X::blocks];
  const int part;

  template <class Use>
  __device__ void operator()(int column, Use use) const {
    pick<X, units, 0, X::blocks * X::N / width>(sums, (part * X::columns + column) / width, use);
  }
};

template <class X>
__device__ void finish_tile(const typename Multiply<X>::Sums (&sums)[X::blocks], const typename X::Epilogue& epilogue,
                            const Vectors<X>& vectors, Parts<X>& parts, const PartPlace& tile) {
  constexpr int in_row = X::N / X::columns, count = X::blocks * in_row;
  const auto place = [&](int i) {
    return PartPlace{tile.m + i / in_row * 64, tile.n + i % in_row * X::columns, tile.batch};
  };
  if constexpr (X::Epilogue::may_be_plain(X::held) && !X::direct) {
    if (X::Epilogue::is_plain(parts.p.epilogue)) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        parts.begin(place(i), place(i + 1), i + 1 < count);
        store_part<X>(place(i), epilogue, parts, PartSums<X, X::columns / kUnitColumns>{sums, i});
      }
      return;
    }
  }
  vectors.stage();
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    parts.begin(place(i), place(i + 1), i + 1 < count);
    finish_part<X>(place(i), vectors.of_part(tile, place(i)), epilogue, parts, PartSums<X, X::straight>{sums, i});
  }
}

// By a warpgroup.
template <class X>
__device__ void compute_tiles(const typename Parts<X>::Given& p, const SharedMemory<X>& shared, const Place<X>& place,
                              int warpgroup) {
  const Release<X> release(shared, place);
  const typename X::Epilogue epilogue(p.epilogue, p.operand);
  Vectors<X> vectors(p, shared, warpgroup);
  Parts<X> parts(p, shared, warpgroup);
  const int first_row = X::pingpong ? 0 : warpgroup * X::rows;
  const Multiply<X> multiply{shared, release, first_row};
  const Steps steps = Steps::all(p.steps);
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
    vectors.request(tile);
    parts.request(tile);
    typename Multiply<X>::Sums sums[X::blocks];
    if constexpr (X::pingpong) {
      wait(shared.turn(warpgroup), turn);
      turn ^= 1;
    }
    const auto done = [&] {
      if constexpr (X::pingpong) arrive(shared.turn(warpgroup ^ 1));
    };
    if constexpr (X::promoted) {
      multiply.promoted_tile(sums, at, steps, Factors<X>(p, tile.m, tile.n, tile.batch), done);
    } else {
      multiply.tile(sums, at, steps, done);
    }
    finish_tile<X>(sums, epilogue, vectors, parts, tile);
  }
  parts.finish();
}

// ------------------------------------------------------------------------------------------------ slices of k

// By a warpgroup, where the blocks of a cluster have a slice each of one tile's k: sums go to shared memory, where the
// stages were, and the blocks finish a part of the tile each, from all slices in their order.
template <class X>
__device__ void compute_slice(const typename Parts<X>::Given& p, const SharedMemory<X>& shared, const Place<X>& place,
                              int warpgroup) {
  const bool works = !X::pingpong || warpgroup == 0;  // there is one tile
  const int first_row = X::pingpong ? 0 : warpgroup * X::rows;
  const auto sums_at = [&](int block, int i) {  // of this thread, four by four
    return shared.stages +
           (((warpgroup * X::blocks + block) * X::registers / 4 + i / 4) * 128 + threadIdx.x % 128) * 16;
  };
  Tiles tiles(p.order, p.slices);
  tiles.take();
  const PartPlace tile{tiles.m * X::M + first_row, tiles.n * X::N, tiles.batch};
  if (works) {
    const Release<X> release(shared, place);
    const Multiply<X> multiply{shared, release, first_row};
    const Steps steps = Steps::slice(p.steps, place.rank, p.slices);
    Pipeline<X> at;
    typename Multiply<X>::Sums sums[X::blocks];
    const auto done = [] {};
    if constexpr (X::promoted) {
      multiply.promoted_tile(sums, at, steps, Factors<X>(p, tile.m, tile.n, tile.batch), done);
    } else {
      multiply.tile(sums, at, steps, done);
    }
    named_barrier(1 + kWarpgroups, X::pingpong ? 128 : kWarpgroups * 128);  // other warps read the stages too
#pragma unroll
    for (int block = 0; block < X::blocks; ++block) {
#pragma unroll
      for (int i = 0; i < X::registers; i += 4) {
        store_shared(sums_at(block, i), {sums[block][i], sums[block][i + 1], sums[block][i + 2], sums[block][i + 3]});
      }
    }
  }
  synchronize_cluster();
  if (!works) return;
  const typename X::Epilogue epilogue(p.epilogue, p.operand);
  Vectors<X> vectors(p, shared, warpgroup);
  Parts<X> parts(p, shared, warpgroup);
  vectors.request(tile);
  vectors.stage();
  constexpr int in_row = X::N / X::columns;
  for (int i = place.rank; i < X::blocks * in_row; i += p.slices) {
    const int block = i / in_row, part = i % in_row * X::columns;
    const PartPlace here{tile.m + block * 64, tile.n + part, tile.batch};
    parts.request(here);
    parts.begin(here, here, false);
    finish_part<X>(here, vectors.of_part(tile, here), epilogue, parts, [&](int column, auto use) {
      float z[X::straight * kUnit] = {};
      for (int slice = 0; slice < p.slices; ++slice) {
#pragma unroll
        for (int i = 0; i < X::straight * kUnit; i += 4) {
          float x[4];
          load_remote(sums_at(block, (part + column) / 2 + i), slice, x);
#pragma unroll
          for (int j = 0; j < 4; ++j) z[i + j] += x[j];
        }
      }
#pragma unroll
      for (int i = 0; i < X::straight * kUnit; ++i) use(i / kUnit, i % kUnit, z[i]);
    });
  }
  parts.finish();
}

// ------------------------------------------------------------------------------------------------ all of it

template <class X>
__device__ void compute(const ParametersWith<X::Epilogue::operands>& p) {
  const SharedMemory<X> shared(dynamic_shared_memory());
  const Place<X> place;
  if (threadIdx.x == 0) {
    prefetch(p.left), prefetch(p.right);
    if constexpr (!X::direct) prefetch(p.d.map);
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
  if constexpr (X::cluster > 1) meet_in_cluster();
  wait_for_predecessor();

  const int warp = warp_index();
  if (warp < 4) {
    release_registers<kLoaderRegisters>();
    if (threadIdx.x == 0) load_tiles(p, shared, place);
    if constexpr (X::split) {
      synchronize_warp();  // the warp arrives as one
      synchronize_cluster();
    }
  } else {
    claim_registers<kRegisters>();
    if constexpr (X::split) {
      compute_slice(p, shared, place, warp / 4 - 1);
    } else {
      compute_tiles(p, shared, place, warp / 4 - 1);
    }
  }
  if constexpr (X::split) meet_in_cluster();  // others may still read this block's sums; what they have used has come
}

template <class X>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ ParametersWith<X::Epilogue::operands> p) {
  compute<X>(p);
}

}  // namespace cutlass_py::sm90
