// Which products a kernel of groups computes, where their matrices lie, and which tiles a block takes: groups of rows,
// of columns or of k, told apart by numbers in device memory, or the matrices of a list.
#pragma once

#include "abi/kernel.h"
#include "kernels/common/queue.cuh"
#include "kernels/sm90/groups.cuh"

namespace cutlass_py {

// An operand of all products: how far the next group's lies, and how far a line of a group moves it, in elements. Of
// lists (`listed`) addresses.
struct Operand2x {
  const void* data;
  int64_t batch, line, ld;
  bool listed;
};

// One of the products.
struct Product2x {
  int group, begin;  // its first line
  int m, n, k;
};

template <class Output>
struct Parameters2x {
  sm90::Groups groups;
  char axis;
  const CutlassPyExtents* extents;  // of a list
  int32_t m, n, k;
  Operand2x a, b, c, d;
  Output output;

  template <class T>
  __device__ T* address(const Operand2x& operand, const Product2x& x) const {
    if (operand.listed) return static_cast<T* const*>(operand.data)[x.group];
    return static_cast<T*>(const_cast<void*>(operand.data)) + x.group * operand.batch + x.begin * operand.line;
  }
  __device__ int64_t leading(const Operand2x& operand, int64_t CutlassPyExtents::* listed, const Product2x& x) const {
    return operand.listed ? extents[x.group].*listed : operand.ld;
  }
};

// Tiles of M by N, bands of them along the rows.
template <int M, int N, class Parameters>
class Tiles2x {
 public:
  int m = 0, n = 0;  // of the tile, in its product

  __device__ explicit Tiles2x(const Parameters& p) : p_(p), i_(int(blockIdx.x)) {}

  // The next one of this block; false where there is none.
  __device__ bool next() {
    const bool found = scan_.find(i_, p_.groups.count, [&](int group) { return look(group); });
    i_ += int(gridDim.x);
    return found;
  }

  // Whose tile was found; places it.
  __device__ Product2x product() {
    Product2x x{scan_.first + scan_.lane, 0, p_.m, p_.n, p_.k};
    if (p_.extents) {
      const CutlassPyExtents& e = p_.extents[x.group];
      x.m = int(e.m), x.n = int(e.n), x.k = int(e.k);
    } else {
      x.begin = sm90::from_lane(lines_.begin, scan_.lane);
      const int lines = sm90::from_lane(lines_.end, scan_.lane) - x.begin;
      (p_.axis == 'm' ? x.m : p_.axis == 'n' ? x.n : x.k) = lines;
    }
    place(int(ceil_div(x.m, M)), int(ceil_div(x.n, N)));
    return x;
  }

 private:
  static constexpr int kBand = 8;
  const Parameters& p_;
  sm90::TileScan scan_;
  sm90::GroupLines lines_;
  int i_;

  // The tiles of this lane's group. All lanes look, where there is one or not.
  __device__ uint32_t look(int group) {
    int64_t m = p_.m, n = p_.n;
    if (p_.extents) {
      if (group >= p_.groups.count) return 0;
      m = p_.extents[group].m, n = p_.extents[group].n;
    } else {
      lines_.look(p_.groups, group);
      if (p_.axis == 'm') m = lines_.end - lines_.begin;
      if (p_.axis == 'n') n = lines_.end - lines_.begin;
    }
    const int64_t tiles = ceil_div(m, M) * ceil_div(n, N);
    return uint32_t(tiles < INT32_MAX ? tiles : INT32_MAX);
  }

  __device__ void place(int rows, int columns) {
    const int band = scan_.place / (kBand * rows), rest = scan_.place - band * kBand * rows;
    const int width = min(kBand, columns - band * kBand);
    m = rest / width, n = band * kBand + rest - m * width;
  }
};

// What a kernel is told, but for what its epilogue is (`rows`: whether A and B are row-major).
template <class Output>
Parameters2x<Output> parameters2x(const CutlassPyGemm& g, bool rows_a, bool rows_b) {
  const CutlassPyEpilogue& e = g.epilogue;
  const CutlassPyArray absent{g.d, 0, g.ldd, 1, g.batch_d};
  const CutlassPyArray& c = e.bias.data ? e.bias : e.c.data ? e.c : absent;
  const char axis = g.groups.axis;
  const auto line = [&](char first, int64_t step, char second, int64_t other) {
    return axis == first ? step : axis == second ? other : 0;
  };
  Parameters2x<Output> p{};
  p.groups.count = g.batch, p.groups.total = axis == 'm' ? g.m : axis == 'n' ? g.n : g.k;
  p.groups.numbers = g.groups.numbers, p.groups.kind = g.groups.kind, p.groups.wide = g.groups.wide != 0;
  p.axis = axis, p.extents = g.extents, p.m = g.m, p.n = g.n, p.k = g.k;
  const bool listed = g.extents != nullptr;  // but not a bias, which all share
  p.a = {g.a, g.batch_a, line('m', rows_a ? g.lda : 1, 'k', rows_a ? 1 : g.lda), g.lda, listed};
  p.b = {g.b, g.batch_b, line('k', rows_b ? g.ldb : 1, 'n', rows_b ? 1 : g.ldb), g.ldb, listed};
  p.c = {c.data, c.batch, line('m', c.row, 'n', 1), c.row, listed && !e.bias.data};
  p.d = {g.d, g.batch_d, line('m', g.ldd, 'n', 1), g.ldd, listed};
  return p;
}

constexpr int64_t kMostTiles2x = 1 << 30;
// Groups of lines: as many tiles as all lines together have, and one more of each group, which may end within one. How
// many a list has, the device knows.
inline int64_t most_tiles2x(const CutlassPyGemm& g, int tile_m, int tile_n) {
  const int64_t rows = ceil_div(g.m, tile_m), columns = ceil_div(g.n, tile_n);
  if (g.extents) return kMostTiles2x;
  if (g.groups.kind == CUTLASS_PY_GROUP_FIRST || g.groups.axis == 'k') return rows * columns * g.batch;
  return g.groups.axis == 'm' ? (rows + g.batch) * columns : rows * (columns + g.batch);
}

}  // namespace cutlass_py
