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

// Tiles of groups, which are found as they are needed: a warp looks at 32 groups at a time. All of its lanes take part.
struct GroupedTiles {
  const Groups& groups;
  const TileOrder& order;
  const int step, tile, others;    // lines of a tile of groups; how many tiles lie along the other axis
  const bool along_m;              // the groups
  int i, m, n, batch, begin, end;  // of the tile: its place in the group; of the group its lines

  // `tile` 0: of groups of k, which have `others` tiles each.
  __device__ GroupedTiles(const Groups& groups, const TileOrder& order, int first, int step, int tile, int others,
                          bool along_m)
      : groups(groups), order(order), step(step), tile(tile), others(others), along_m(along_m), i(first) {
    look();
    find();
  }
  __device__ bool left() const { return batch < groups.count; }
  __device__ void advance() {
    i += step;
    find();
  }

 private:
  static constexpr uint32_t kMost = 1u << 30;
  int first_ = 0;                   // of 32 groups
  uint32_t before_ = 0, line_ = 0;  // tiles and lines in front of these
  int own_begin_, own_end_;         // of this lane's group
  uint32_t own_last_;               // tiles up to its last one, of these 32

  static __device__ int lane() { return int(threadIdx.x) % 32; }
  // Up to this lane, no more than so many.
  static __device__ uint32_t sum(uint32_t x, uint32_t most) {
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const uint32_t other = from_below(x, by);
      if (lane() >= by) x = min(x + other, most);
    }
    return x;
  }

  __device__ void look() {
    const int group = first_ + lane();
    const bool there = group < groups.count;
    int begin = 0, end = 0;
    if (there && groups.kind == CUTLASS_PY_GROUP_ENDS) {
      begin = group ? groups.number(group - 1) : 0, end = groups.number(group);
    } else if (there && groups.kind == CUTLASS_PY_GROUP_STARTS) {
      begin = groups.number(group), end = groups.number(group + 1);
    } else if (there) {
      end = groups.number(group);
    }
    if (groups.kind == CUTLASS_PY_GROUP_SIZES) {
      const uint32_t size = uint32_t(end),
                     upto = min(line_ + sum(size, uint32_t(groups.total)), uint32_t(groups.total));
      const uint32_t below = from_below(upto, 1);
      begin = int(lane() ? below : line_), end = int(upto);
      line_ = from_lane(upto, 31);
    }
    own_begin_ = begin, own_end_ = max(begin, end);
    const uint32_t tiles = tile ? uint32_t((own_end_ - begin + tile - 1) / tile) * uint32_t(others) : uint32_t(others);
    own_last_ = sum(there ? min(tiles, kMost) : 0, kMost);
  }

  __device__ void find() {
    uint32_t found;
    while (!(found = lanes_where(uint32_t(i) - before_ < own_last_))) {
      before_ = min(before_ + from_lane(own_last_, 31), kMost);
      first_ += 32;
      if (first_ >= groups.count || before_ == kMost) {
        batch = groups.count;
        return;
      }
      look();
    }
    const int at = first_lane(found);
    const uint32_t in_front = from_lane(own_last_, max(at - 1, 0));
    batch = first_ + at, begin = from_lane(own_begin_, at), end = from_lane(own_end_, at);
    place(i - int(before_) - (at ? int(in_front) : 0));
  }

  // Of a group's tiles the i-th one: in bands, as TileOrder has them.
  __device__ void place(int i) {
    if (!tile) return order.at(i, m, n, unused_);
    const int own = (end - begin + tile - 1) / tile;
    const int across = along_m == order.along_m ? others : own, along = along_m == order.along_m ? own : others;
    const int wide = order.width[0].by, band = i / (wide * along), rest = i - band * wide * along;
    const int width = min(wide, across - band * wide), step = rest / width, place = band * wide + rest - step * width;
    m = order.along_m ? step : place;
    n = order.along_m ? place : step;
  }
  int unused_;
};

}  // namespace cutlass_py::sm90
