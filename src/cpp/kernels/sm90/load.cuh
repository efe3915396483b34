// Loading: one thread of a block keeps the stages full. Blocks of a cluster load parts of what they all read, each for
// the others.
#pragma once

#include "kernels/sm90/parameters.cuh"

namespace cutlass_py::sm90 {

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

// Which tiles a block has, and which stages of each.
template <class X>
__device__ Steps steps_of(const Parameters& p, const Place<X>& place) {
  return X::split ? Steps::slice(p.steps, place.rank, p.slice_steps) : Steps::all(p.steps);
}
template <class X>
__device__ auto tiles_of(const Parameters& p, int takers = 1, int taker = 0) {
  const int clusters = int(gridDim.x) / X::cluster, cluster = int(blockIdx.x) / X::cluster;
  if constexpr (X::grouping == Grouping::lines) {  // for all takers, who are told; moving makes tiles by turns slower
    return GroupedTiles(p.groups, p.order, cluster, clusters, p.group_tile, p.group_others, !p.groups_right,
                        !X::pingpong);
  } else if constexpr (X::deep) {
    return DepthTiles(p.groups, p.order, cluster + clusters * taker, clusters * takers);
  } else if constexpr (X::split) {
    return Tiles::of_slices(p.order, p.slices);
  } else {
    return Tiles::of_cluster(p.order, X::cluster, takers, taker);
  }
}

// Where a block's tile begins in D, as the left operand's rows and the right one's columns.
struct TileCorner {
  int m, n, batch;
};
template <class X, class AnyTiles>
__device__ TileCorner corner_of(const Parameters& p, const AnyTiles& tiles, const Place<X>& place) {
  TileCorner at{(tiles.m * X::cluster_m + place.m) * X::d_rows, (tiles.n * X::cluster_n + place.n) * X::d_columns,
                tiles.batch};
  if constexpr (X::grouping == Grouping::lines) {
    (p.groups_right ? at.n : at.m) += tiles.begin;
  }
  return at;
}

// Tiles of groups of lines take as long to find as a short tile to multiply. The warp that loads finds them ahead, and
// tells those that multiply where each begins, whose it is, and where its group ends; of a matrix -1 there is none.
template <class X>
class Telling {
 public:
  __device__ explicit Telling(const SharedMemory<X>& shared) : shared_(shared) {}
  __device__ void tell(const TileCorner& at, int end) {
    if (threadIdx.x % 32 == 0) {
      wait(shared_.heard(i_), parity_ ^ 1);
      store_shared(shared_.place(i_), {at.m, at.n, at.batch, end});
      arrive(shared_.told(i_));
    }
    if (++i_ == X::told) i_ = 0, parity_ ^= 1;
  }
  __device__ void tell_last() {  // to each that has tiles of its own
    for (int i = 0; i < (X::pingpong ? kWarpgroups : 1); ++i) tell({0, 0, -1}, 0);
  }

 private:
  const SharedMemory<X>& shared_;
  int i_ = 0;
  uint32_t parity_ = 0;
};

// As a warpgroup hears of them: of all, or of every other one.
template <class X>
struct ToldTiles {
  TileCorner corner;
  int end;

  __device__ ToldTiles(const SharedMemory<X>& shared, int takers, int taker)
      : shared_(shared), step_(takers), i_(taker) {
    hear();
  }
  __device__ bool left() const { return corner.batch >= 0; }
  __device__ void advance() {
    if ((i_ += step_) >= X::told) i_ -= X::told, parity_ ^= 1;
    hear();
  }

 private:
  const SharedMemory<X>& shared_;
  const int step_;
  int i_;
  uint32_t parity_ = 0;

  __device__ void hear() {
    int x[4];
    wait(shared_.told(i_), parity_);
    load_shared(shared_.place(i_), x);
    synchronize_warp();
    if (threadIdx.x % 32 == 0) arrive(shared_.heard(i_));
    corner = {x[0], x[1], x[2]}, end = x[3];
  }
};
template <class X>
__device__ TileCorner corner_of(const Parameters&, const ToldTiles<X>& tiles, const Place<X>&) {
  return tiles.corner;
}

// Where the k of a tile begins. Along k copies begin at whole granules, and so within the group in front.
template <class X, class AnyTiles>
__device__ int depth_of(const AnyTiles& tiles) {
  if constexpr (X::deep) {
    constexpr int unit = X::left_along ? 1 : kGranule * X::line / kLine;
    return tiles.begin / unit * unit;
  } else {
    return 0;
  }
}
// Its stages, and what of their elements is the group's.
template <class X, class AnyTiles>
__device__ Steps steps_of_tile(const Steps& all, const AnyTiles& tiles) {
  if constexpr (X::deep) {
    return {0, tiles.begin < tiles.end ? (tiles.end - depth_of<X>(tiles) + X::line - 1) / X::line : 0};
  } else {
    return all;
  }
}
struct Within {
  int begin, end;
};
template <class X, class AnyTiles>
__device__ Within within_stages(const AnyTiles& tiles) {
  if constexpr (X::deep) {
    return {tiles.begin - depth_of<X>(tiles), tiles.end - depth_of<X>(tiles)};
  } else {
    return {};
  }
}

// Loads what a block's tiles need, a stage as soon as it is free: `load` is told of a tile and its first step, of
// groups of lines where the tile's ends, and of each stage. Returns the stage behind the last one.
template <class X, class Load>
__device__ Pipeline<X> fill_stages(const Parameters& p, const SharedMemory<X>& shared, const Place<X>& place,
                                   Load& load) {
  Pipeline<X> at;
  const Steps all = steps_of(p, place);
  if constexpr (X::grouped) wait_for_predecessor();  // which may have told the groups
  auto tiles = tiles_of<X>(p);
  if constexpr (!X::grouped) wait_for_predecessor();
  for (; tiles.left(); tiles.advance()) {
    const TileCorner corner = corner_of(p, tiles, place);
    const Steps steps = steps_of_tile<X>(all, tiles);
    load.begin(corner, steps.begin, depth_of<X>(tiles));
    if constexpr (X::grouping == Grouping::lines) load.tell(corner, tiles.end);
#pragma unroll 1  // its registers are few
    for (int step = steps.begin; step < steps.end; ++step, at.advance()) {
      wait(shared.empty(at.stage), at.parity ^ 1);
      load.stage(at.stage, step);
    }
  }
  return at;
}

// A tile's lines of both operands; of one that has pairs the gates, and from a map of their own the values.
template <class X>
struct TileLoad {
  using Left = OperandLoad<X::left_along, X::d_rows, X::cluster_n>;
  using Right = OperandLoad<X::right_along, X::d_columns, X::cluster_m>;
  const Parameters& p;
  const SharedMemory<X>& shared;
  const Left left;
  const Right right;
  const std::conditional_t<X::pairs == Pairs::left, Left, Right> values;
  Telling<X> telling{shared};
  int m, n, depth, left_batch, right_batch;

  __device__ void tell(const TileCorner& at, int end) { telling.tell(at, end); }
  __device__ void begin(const TileCorner& at, int, int depth) {
    m = at.m, n = at.n, this->depth = depth;
    left_batch = at.batch * p.left_batch, right_batch = at.batch * p.right_batch;
  }
  __device__ void stage(int stage, int step) {
    if (X::grouped && threadIdx.x % 32 != 0) return;  // its warp is there to find tiles
    arrive_expecting(shared.full(stage), X::stage_bytes);
#pragma unroll
    for (int i = 0; i < X::lines; ++i) {
      const int k = depth + (step * X::lines + i) * X::line;
      const Address full = shared.full(stage), to_left = shared.left(stage) + i * X::left_line,
                    to_right = shared.right(stage) + i * X::right_line;
      left.line(to_left, full, m, k, left_batch);
      if constexpr (X::pairs == Pairs::left) values.line(to_left + X::left_line / 2, full, m, k, left_batch);
      right.line(to_right, full, n, k, right_batch);
      if constexpr (X::pairs == Pairs::right) values.line(to_right + X::right_line / 2, full, n, k, right_batch);
    }
  }
};

// By one thread; by its warp, where tiles are of groups.
template <class X>
__device__ void load_tiles(const ParametersWith<X::Epilogue::operands>& p, const SharedMemory<X>& shared,
                           const Place<X>& place) {
  uint16_t row = 0, column = 0;  // blocks that read the same rows, and the same columns
#pragma unroll
  for (int i = 0; i < X::cluster_n; ++i) row |= uint16_t(1 << (place.m + i * X::cluster_m));
#pragma unroll
  for (int i = 0; i < X::cluster_m; ++i) column |= uint16_t(1 << (i + place.n * X::cluster_m));
  const typename TileLoad<X>::Left left{p.left, place.n, row};
  const typename TileLoad<X>::Right right{p.right, place.m, column};
  const auto values = [&] {
    if constexpr (X::pairs == Pairs::left) {
      return typename TileLoad<X>::Left{p.operand[X::Epilogue::b_values].map, place.n, row};
    } else if constexpr (X::pairs == Pairs::right) {
      return typename TileLoad<X>::Right{p.operand[X::Epilogue::b_values].map, place.m, column};
    } else {
      return right;
    }
  };
  TileLoad<X> load{p, shared, left, right, values()};
  Pipeline<X> at = fill_stages(p, shared, place, load);
  let_successor_begin();
  if constexpr (X::grouping == Grouping::lines) load.telling.tell_last();
  if constexpr (X::cluster > 1) {  // the block stays until others have told it of all stages
    for (int i = 0; i < X::stages; ++i, at.advance()) wait(shared.empty(at.stage), at.parity ^ 1);
  }
}

}  // namespace cutlass_py::sm90
