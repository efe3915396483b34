// The tiles of groups of unequal size, which are told apart by numbers in memory.
#pragma once

#include "abi/kernel.h"
#include "kernels/sm90/instructions.cuh"
#include "kernels/sm90/scheduler.cuh"

namespace cutlass_py::sm90 {

// Groups as CutlassPyGroups tells them, and of how many lines together.
struct Groups {
  const void* numbers;
  int32_t count, total, kind;
  bool wide;

  // The i-th number, cut off; none is behind the last one.
  __device__ int number(int i) const {
    if (wide) {
      const int64_t x = static_cast<const int64_t*>(numbers)[i];
      return x < 0 ? 0 : x < total ? int(x) : total;
    }
    return min(max(static_cast<const int32_t*>(numbers)[i], 0), total);
  }
};

// A warp looks at 32 groups at a time, a lane at one of them. All of its lanes take part.
constexpr int kGroupsAtOnce = 32;
__device__ inline int lane_of_groups() { return int(threadIdx.x) % kGroupsAtOnce; }
// Up to this lane, no more than so many.
__device__ inline uint32_t sum_up_to(uint32_t x, uint32_t most) {
#pragma unroll
  for (int by = 1; by < kGroupsAtOnce; by *= 2) {
    const uint32_t other = from_below(x, by);
    if (lane_of_groups() >= by) x = min(x + other, most);
  }
  return x;
}

// Where a lane's group lies.
class GroupLines {
 public:
  int begin, end;

  // Of groups behind those that were looked at before.
  __device__ void look(const Groups& groups, int group) {
    const bool there = group < groups.count;
    begin = end = 0;
    if (there && groups.kind == CUTLASS_PY_GROUP_ENDS) {
      begin = group ? groups.number(group - 1) : 0, end = groups.number(group);
    } else if (there && groups.kind == CUTLASS_PY_GROUP_STARTS) {
      begin = groups.number(group), end = groups.number(group + 1);
    } else if (there) {
      end = groups.number(group);
    }
    if (groups.kind == CUTLASS_PY_GROUP_SIZES) {
      const uint32_t total = uint32_t(groups.total), upto = min(before_ + sum_up_to(uint32_t(end), total), total);
      const uint32_t below = from_below(upto, 1);
      begin = int(lane_of_groups() ? below : before_), end = int(upto);
      before_ = from_lane(upto, kGroupsAtOnce - 1);
    }
    end = max(begin, end);
  }

 private:
  uint32_t before_ = 0;  // lines in front of these
};

// Which group a tile is of, and which of its tiles: they are numbered group by group.
class TileScan {
 public:
  int first = -kGroupsAtOnce, lane = 0, place = 0;  // of the groups looked at; among them, the one found; its tile

  // The i-th tile, none before one that was found: false behind the last one. look(group): how many this lane's has.
  template <class Look>
  __device__ bool find(int i, int count, Look look) {
    uint32_t found;
    while (!(found = lanes_where(uint32_t(i) - before_ < upto_))) {
      before_ = min(before_ + from_lane(upto_, kGroupsAtOnce - 1), kMost);
      first += kGroupsAtOnce;
      if (first >= count || before_ == kMost) return false;
      const int group = first + lane_of_groups();
      const uint32_t tiles = look(group);
      upto_ = sum_up_to(group < count ? min(tiles, kMost) : 0, kMost);
    }
    lane = first_lane(found);
    const uint32_t in_front = from_lane(upto_, max(lane - 1, 0));
    place = i - int(before_) - (lane ? int(in_front) : 0);
    return true;
  }

 private:
  static constexpr uint32_t kMost = 1u << 30;
  uint32_t before_ = 0, upto_ = 0;  // tiles in front of these groups; up to this lane's last one, of these
};

// Tiles of groups of lines, which are found as they are needed: a cluster takes one of every wave of as many as there
// are clusters.
//
// Where the last tile of each group has few lines, those that have the same place in every wave would have these
// always, or never: some run ahead of others that read the same weights, until the cache has lost them. So they may
// take the next place in the next wave (docs/performance/tile_orders.md).
struct GroupedTiles {
  const Groups& groups;
  const TileOrder& order;
  const int wave, tile, others;    // tiles of one; lines of a tile of groups; how many tiles lie along the other axis
  const bool along_m, moves;       // the groups; a cluster, from wave to wave
  int i, m, n, batch, begin, end;  // of the tile: its place in the group; of the group its lines

  __device__ GroupedTiles(const Groups& groups, const TileOrder& order, int first, int wave, int tile, int others,
                          bool along_m, bool moves)
      : groups(groups),
        order(order),
        wave(wave),
        tile(tile),
        others(others),
        along_m(along_m),
        moves(moves),
        i(first),
        in_wave_(first) {
    find();
  }
  __device__ bool left() const { return batch < groups.count; }
  __device__ void advance() {
    i += wave;
    if (moves) {
      ++i;
      if (++in_wave_ == wave) in_wave_ = 0, i -= wave;
    }
    find();
  }

 private:
  TileScan scan_;
  GroupLines own_;
  int in_wave_;  // the tile's place

  __device__ void find() {
    const bool found = scan_.find(i, groups.count, [&](int group) {
      own_.look(groups, group);
      return uint32_t((own_.end - own_.begin + tile - 1) / tile) * uint32_t(others);
    });
    batch = found ? scan_.first + scan_.lane : groups.count;
    if (!found) return;
    begin = from_lane(own_.begin, scan_.lane), end = from_lane(own_.end, scan_.lane);
    place(scan_.place);
  }

  // Of a group's tiles the i-th one: in bands, as TileOrder has them.
  __device__ void place(int i) {
    const int own = (end - begin + tile - 1) / tile;
    const int across = along_m == order.along_m ? others : own, along = along_m == order.along_m ? own : others;
    const int wide = order.width[0].by, band = i / (wide * along), rest = i - band * wide * along;
    const int width = min(wide, across - band * wide), step = rest / width, place = band * wide + rest - step * width;
    m = order.along_m ? step : place;
    n = order.along_m ? place : step;
  }
};

// Tiles where groups have a part of k each, and all as many tiles: those of a batch, of whose groups lines are looked
// up.
struct DepthTiles : Tiles {
  const Groups& groups;
  int begin, end;  // of the group's k

  __device__ DepthTiles(const Groups& groups, const TileOrder& order, int first, int step)
      : Tiles(order, first, step), groups(groups) {
    own_.look(groups, lane_of_groups());
    find();
  }
  __device__ void advance() {
    const int before = batch;
    Tiles::advance();
    if (batch != before) find();
  }

 private:
  GroupLines own_;
  int first_ = 0;  // of the groups looked at

  __device__ void find() {
    if (!left()) return;
    while (batch >= first_ + kGroupsAtOnce) own_.look(groups, (first_ += kGroupsAtOnce) + lane_of_groups());
    begin = from_lane(own_.begin, batch - first_), end = from_lane(own_.end, batch - first_);
  }
};

}  // namespace cutlass_py::sm90
