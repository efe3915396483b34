// The kernel: one thread keeps the stages full, two warpgroups multiply what is there and store it.
//
// Blocks stay and take tile after tile (scheduler.cuh). Warpgroups share a tile, or take turns: one multiplies while
// the other one finishes and stores. Blocks of a cluster load parts of what they all read, each for the others.
#pragma once

#include "kernels/sm90/multiply.cuh"
#include "kernels/sm90/reductions.cuh"
#include "kernels/sm90/unaligned.cuh"

namespace cutlass_py::sm90 {

// Of pairs: gates, then values. Without pairs there is the first half alone.
template <int half>
struct Half {
  static constexpr int number = half;
};

// Finishes a part of a tile and stores it: pick(z, group, half) leaves in z the sums of a group of units.
template <class X, class Pick>
__device__ void finish_part(const PartPlace& here, const typename Vectors<X>::Staged& lines,
                            const typename X::Epilogue& epilogue, Parts<X>& parts, Pick pick) {
  Totals<X, typename X::Epilogue::Reductions> totals;
#pragma unroll 1
  for (int group = 0; group < X::groups(X::straight); ++group) {
    const int first = X::first_unit(group, X::straight);
    const auto column = [&](int i) { return (first + i) * kUnitColumns; };
    typename Parts<X>::Numbers beside[X::straight];
    typename X::Number z[X::straight][kUnit];
#pragma unroll
    for (int i = 0; i < X::straight; ++i) parts.get(beside[i], column(i));
    const auto taken = [&](const float (*results)[kUnit], int i) {
      const Corner at{here.m + own_row(), here.n + column(i) + own_column(), here.batch, parts.ends.m(),
                      parts.ends.n()};
      totals.take(parts, results, at, column(i));
    };
    if constexpr (X::paired) {
      typename X::Number gates[X::straight][kUnit];
      pick(gates, group, Half<0>());
      epilogue.scale(gates, lines, column(0));
#pragma unroll
      for (int i = 0; i < X::straight; ++i) {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) beside[i][0][j] = gates[i][j];
      }
      pick(z, group, Half<1>());
      epilogue.scale(z, values_of<X>(lines), column(0));
    } else {
      pick(z, group, Half<0>());
      epilogue.scale(z, lines, column(0));
    }
    epilogue.finish(z, beside, lines, column(0), taken);
    if (group == 0) parts.claim();  // no sooner: meanwhile what was in the buffer leaves
#pragma unroll
    for (int i = 0; i < X::straight; ++i) parts.put(z[i], beside[i], column(i));
  }
  parts.send(here);
  totals.leave(parts, here);
}

// Likewise, of sums that are scaled and no more: written out.
template <class X, class Pick>
__device__ void store_part(const PartPlace& here, const typename Vectors<X>::Staged& lines,
                           const typename X::Epilogue& epilogue, Parts<X>& parts, Pick pick) {
  // Beside many sums a unit's registers are used again for the next one.
  constexpr int at_once = X::held >= 160 ? 1 : X::units;
#pragma unroll
  for (int first = 0; first < X::units; first += at_once) {
    typename X::Number z[at_once][kUnit];
    pick(z, first / at_once, Half<0>());
    epilogue.scale(z, lines, first * kUnitColumns);
    epilogue.scale_result(z);
    if (first == 0) parts.claim();
#pragma unroll
    for (int i = 0; i < at_once; ++i) parts.put(z[i], {}, (first + i) * kUnitColumns);
  }
  parts.send(here);
}

// The i-th group of [begin, end) that all parts have one after the other, from a tile's sums, of one half. By branches,
// for registers have no index.
template <class X, int units, int half, int begin = 0, int end = X::parts * X::groups(units)>
__device__ void pick(const typename Multiply<X>::Sums (&sums)[X::blocks], int i,
                     typename X::Number (&z)[units][kUnit]) {
  constexpr int middle = (begin + end) / 2;
  if constexpr (end - begin == 1) {
    constexpr int part = begin / X::groups(units);
    constexpr int block = part / X::in_row + (X::pairs == Pairs::left ? half * X::d_blocks : 0);
    constexpr int column = X::first_column(part) + (X::pairs == Pairs::right ? half * X::d_columns : 0);
    constexpr int first = column / kUnitColumns + X::first_unit(begin % X::groups(units), units);
#pragma unroll
    for (int j = 0; j < units * kUnit; ++j) {
      z[j / kUnit][j % kUnit] = typename X::Number(X::Sum::value(sums[block], first * kUnit + j));
    }
  } else if (i < middle) {
    pick<X, units, half, begin, middle>(sums, i, z);
  } else {
    pick<X, units, half, middle, end>(sums, i, z);
  }
}

template <class X>
__device__ void finish_tile(const typename Multiply<X>::Sums (&sums)[X::blocks], const typename X::Epilogue& epilogue,
                            const Vectors<X>& vectors, Parts<X>& parts, const PartPlace& tile) {
  const auto place = [&](int i) {
    return PartPlace{tile.m + i / X::in_row * 64, tile.n + X::first_column(i), tile.batch};
  };
  if (X::Epilogue::has_vectors(parts.p.epilogue)) vectors.stage();
  const auto sums_of = [&](int i) {
    return [&sums, i](auto& z, int group, auto half) {
      constexpr int units = sizeof(z) / sizeof(z[0]);
      pick<X, units, decltype(half)::number>(sums, i * X::groups(units) + group, z);
    };
  };
  if constexpr (X::Epilogue::may_be_linear(X::held) && !X::direct) {
    if (X::Epilogue::is_linear(parts.p.epilogue)) {
#pragma unroll
      for (int i = 0; i < X::parts; ++i) {
        parts.begin(place(i), place(i + 1), i + 1 < X::parts);
        store_part<X>(place(i), vectors.of_part(tile, place(i)), epilogue, parts, sums_of(i));
      }
      return;
    }
  }
#pragma unroll 1
  for (int i = 0; i < X::parts; ++i) {
    parts.begin(place(i), place(i + 1), i + 1 < X::parts);
    finish_part<X>(place(i), vectors.of_part(tile, place(i)), epilogue, parts, sums_of(i));
  }
}

// By a warpgroup.
template <class X>
__device__ void compute_tiles(const typename Parts<X>::Given& p, const SharedMemory<X>& shared, const Place<X>& place,
                              int warpgroup) {
  const Release<X> release(shared, place);
  Vectors<X> vectors(p, shared, warpgroup);
  Parts<X> parts(p, shared, warpgroup);
  const int first_row = X::pingpong ? 0 : warpgroup * X::rows;  // pairs of rows: then all of a tile are one's
  const Multiply<X> multiply{shared, release, first_row};
  const Steps all = Steps::all(p.steps);
  Pipeline<X> at;
  uint32_t turn = warpgroup ^ 1;                  // the first warpgroup begins
  if constexpr (X::deep) wait_for_predecessor();  // which may have told the groups
  // Of groups of k a warpgroup has to know how long the other one's tiles are: it passes them by, one after the other.
  constexpr bool passes = X::pingpong && X::deep, takes = X::pingpong && !passes;
  constexpr int takers = takes ? kWarpgroups : 1;
  const int taker = takes ? warpgroup : 0;
  auto tiles = [&] {
    if constexpr (X::grouping == Grouping::lines) {
      return ToldTiles<X>(shared, takers, taker);
    } else {
      return tiles_of<X>(p, takers, taker);
    }
  }();
  const auto leave_to_other = [&] {
    if constexpr (takes) at.advance(p.steps);
    if constexpr (passes) {
      if (!tiles.left()) return;
      at.advance(steps_of_tile<X>(all, tiles).end);
      tiles.advance();
    }
  };
  if (warpgroup) leave_to_other();
  if constexpr (!X::deep) wait_for_predecessor();
  const typename X::Epilogue epilogue(p.epilogue, p.operand);
  for (; tiles.left(); tiles.advance(), leave_to_other()) {
    const TileCorner corner = corner_of(p, tiles, place);
    const PartPlace tile{corner.m + first_row, corner.n, corner.batch};
    const Steps steps = steps_of_tile<X>(all, tiles);
    if constexpr (X::grouping == Grouping::lines) {
      (p.groups_right ? vectors.ends.end_n : vectors.ends.end_m) = tiles.end;
      parts.ends = vectors.ends;
    }
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
    const Within within = within_stages<X>(tiles);
    if constexpr (X::promoted) {
      multiply.promoted_tile(sums, at, steps, done, within);
    } else if constexpr (X::serial) {
      multiply.serial_tile(sums, at, p.steps, p.slice_steps, done);
    } else {
      multiply.tile(sums, at, steps, done, within);
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
  const Tiles tiles = Tiles::of_slices(p.order, p.slices);
  wait_for_predecessor();
  const PartPlace tile{tiles.m * X::M + first_row, tiles.n * X::N, tiles.batch};
  if (works) {
    const Release<X> release(shared, place);
    const Multiply<X> multiply{shared, release, first_row};
    const Steps steps = Steps::slice(p.steps, place.rank, p.slice_steps);
    Pipeline<X> at;
    typename Multiply<X>::Sums sums[X::blocks];
    const auto done = [] {};
    if constexpr (X::promoted) {
      multiply.promoted_tile(sums, at, steps, done);
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
  if (X::Epilogue::has_vectors(p.epilogue)) vectors.stage();
  for (int i = place.rank; i < X::parts; i += p.slices.by) {
    const int block = i / X::in_row, part = X::first_column(i);
    const PartPlace here{tile.m + block * 64, tile.n + part, tile.batch};
    parts.request(here);
    parts.begin(here, here, false);
    finish_part<X>(here, vectors.of_part(tile, here), epilogue, parts, [&](auto& z, int group, Half<0>) {
      const int column = X::first_unit(group, X::straight) * kUnitColumns;
#pragma unroll
      for (auto& unit : z) {
#pragma unroll
        for (float& sum : unit) sum = 0;
      }
      for (int slice = 0; slice < p.slices.by; ++slice) {
#pragma unroll
        for (int i = 0; i < X::straight * kUnit; i += 4) {
          float x[4];
          load_remote(sums_at(block, (part + column) / 2 + i), slice, x);
#pragma unroll
          for (int j = 0; j < 4; ++j) z[i / kUnit][i % kUnit + j] += x[j];
        }
      }
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
    if constexpr (!X::unaligned) prefetch(p.left), prefetch(p.right);
    if constexpr (!X::direct) prefetch(p.d.map);
    for (int stage = 0; stage < X::stages; ++stage) {
      init_barrier(shared.full(stage), X::unaligned ? kLoadingWarps : 1 + (X::has_factors ? kCopying : 0));
      init_barrier(shared.empty(stage), Release<X>::sharing * Release<X>::warps);
    }
    for (int i = 0; i < kWarpgroups; ++i) {
      init_barrier(shared.turn(i), 128);
      for (int j = 0; X::reads && j < X::buffers; ++j) init_barrier(shared.arrived(i, j), 1);
    }
    for (int i = 0; i < X::told; ++i) {
      init_barrier(shared.told(i), 1);
      init_barrier(shared.heard(i), Release<X>::warps);
    }
    publish_barriers();
  }
  synchronize_block();
  if constexpr (X::cluster > 1) meet_in_cluster();

  const int warp = warp_index();
  if (warp < 4) {
    if constexpr (X::unaligned) {
      load_unaligned_tiles(p, shared, place);
    } else {
      release_registers<kLoaderRegisters>();
      if (X::grouped ? warp == 0 : threadIdx.x == 0) load_tiles(p, shared, place);
    }
    if constexpr (X::has_factors) {
      if (warp >= 4 - kCopying / 32) copy_factors(p, shared, place);
    }
    if constexpr (X::split) {
      synchronize_warp();  // the warp arrives as one
      synchronize_cluster();
    }
  } else {
    if constexpr (!X::unaligned) claim_registers<kRegisters>();  // those that load need as many
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
