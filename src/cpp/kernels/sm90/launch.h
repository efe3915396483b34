// How a product becomes a launch of one of these kernels: tensor maps, the order of tiles, the grid.
//
// One function for all of them: what they differ in, their Shape says.
#pragma once

#include <climits>

#include "abi/kernel.h"
#include "kernels/common/driver.cuh"
#include "kernels/common/queue.cuh"
#include "kernels/sm90/design.cuh"
#include "kernels/sm90/parameters.cuh"
#include "kernels/sm90/reductions.cuh"
#include "kernels/sm90/tensor_map.h"

namespace cutlass_py::sm90 {

inline UnalignedOperand unaligned(const Matrices& x) {
  const int64_t batch = x.shared() ? 0 : x.batch_stride * x.size;
  return {static_cast<const char*>(x.data), x.stride * x.size, batch, x.inner * x.size, int32_t(x.outer)};
}

// A or B; of B's columns, where they come in pairs, those that lie `behind` the gates by so many elements.
inline Matrices operand(const Shape& x, const CutlassPyGemm& g, bool is_a, int64_t behind = 0) {
  const bool along = is_a != x.swap ? x.left_along : x.right_along;
  const int64_t extent = is_a ? g.m : g.n, k = g.k ? g.k : 1, inner = along ? extent : k, outer = along ? k : extent;
  if (!g.k) return {g.d, x.size, inner, outer, ceil_div(inner, 16) * 16, 1, 0, x.tf32};  // is never read
  if (is_a) return {g.a, x.size, inner, outer, g.lda, g.batch, g.batch_a, x.tf32};
  return {static_cast<const char*>(g.b) + behind * x.size, x.size, inner, outer, g.ldb, g.batch, g.batch_b, x.tf32};
}
inline int encode_left(TensorMap& map, const Shape& x, const Matrices& left) {
  return x.left_along ? encode(map, left, 64, 64 / x.cluster_n) : encode(map, left, x.line(), x.m / x.cluster_n);
}
inline int encode_right(TensorMap& map, const Shape& x, const Matrices& right) {
  return x.right_along ? encode(map, right, panel_of(x.n), 64 / x.cluster_m)
                       : encode(map, right, x.line(), x.n / x.cluster_m);
}

inline int encode_operands(Parameters& p, const Shape& x, const CutlassPyGemm& g) {
  const Matrices left = operand(x, g, !x.swap), right = operand(x, g, x.swap);
  p.left_batch = !left.shared(), p.right_batch = !right.shared();
  if (x.unaligned) {
    p.left_unaligned = unaligned(left), p.right_unaligned = unaligned(right);
    return 0;
  }
  if (int error = encode_left(p.left, x, left)) return error;
  return encode_right(p.right, x, right);
}

// D, or what lies like it.
inline int encode_matrix(Operand& to, const Shape& x, const CutlassPyGemm& g, int size, void* data, int64_t row,
                         int64_t batch) {
  const Matrices given{data, size, g.n, g.m, row, g.batch, batch};
  to.data = data, to.row = row, to.batch = batch;
  to.batched = !given.shared();
  if (x.direct || !data) return 0;
  return x.swap ? encode(to.map, given, turned_panel(size), x.columns)
                : encode(to.map, given, part_panel(x.columns, size), 64);
}

// What a kernel reads or writes beside D: the only one that is given of these.
inline CutlassPyArray beside(const CutlassPyEpilogue& e) {
  if (e.c.data) return EpilogueArguments::reads_c(e) ? e.c : CutlassPyArray{};
  return e.gate.data ? e.gate : e.aux;
}

inline int fill_operand(Operand& to, const Shape& x, const Beside& what, const CutlassPyGemm& g) {
  if (what.reduces != Reduces::none) return 0;
  if (what.index == Beside::b_values) {
    const Matrices values = operand(x, g, false, g.pairs.b);
    return x.swap ? encode_left(to.map, x, values) : encode_right(to.map, x, values);
  }
  if (what.index == Beside::d_values) {
    void* const data = static_cast<char*>(g.d) + g.pairs.d * what.size;
    return encode_matrix(to, x, g, what.size, data, g.ldd, g.batch_d);
  }
  const bool users = what.index >= 0;
  CutlassPyArray given = users ? g.epilogue.user[what.index].array : beside(g.epilogue);
  if (what.index == Beside::aux_values) given.data = static_cast<char*>(given.data) + g.pairs.aux * what.size;
  if (what.size) return encode_matrix(to, x, g, what.size, given.data, given.row, given.batch);
  to.vector = Vector(given, x.swap);
  if (users) to.value = float(g.epilogue.user[what.index].value);
  return 0;
}

// By rows and columns of the product: of A (m, k / 128), of B (k / 128, n / 128) or (k / 128, n).
inline void fill_factors(Parameters& p, const Shape& x, const CutlassPyEpilogue& e) {
  const CutlassPyArray &a = e.scale_a, &b = e.scale_b;
  const BlockFactors of_a{static_cast<const float*>(a.data), a.col, a.row, a.batch};
  const BlockFactors of_b{static_cast<const float*>(b.data), b.row, b.col, b.batch};
  p.left_factors = x.swap ? of_b : of_a, p.right_factors = x.swap ? of_a : of_b;
}

inline int64_t rows_of(const Shape& x, const CutlassPyGemm& g) { return x.swap ? g.n : g.m; }
inline int64_t columns_of(const Shape& x, const CutlassPyGemm& g) { return x.swap ? g.m : g.n; }

// Whether groups divide the right operand's columns.
inline bool groups_right(const Shape& x, const CutlassPyGemm& g) { return (g.groups.axis == 'n') != x.swap; }

// each(operand, lines, parts of a line, where those of the first product lie in the workspace) of the reductions;
// returns the bytes of all.
template <class Each>
size_t each_reduction(const Shape& x, const CutlassPyGemm& g, Each each) {
  const int64_t rows = rows_of(x, g), columns = columns_of(x, g);
  size_t offset = 0;
  for (int i = 0; i < x.operands; ++i) {
    if (x.beside[i].reduces == Reduces::none) continue;
    const bool by_row = by_left_row(x.beside[i].reduces, x.swap);
    const int64_t lines = by_row ? rows : columns;
    const int64_t parts = by_row ? ceil_div(columns, x.columns) : ceil_div(rows, 64);
    each(i, int32_t(lines), int32_t(parts), offset);
    offset += size_t(g.batch * parts * lines) * sizeof(float);
  }
  return offset;
}
inline size_t workspace_size(const Shape& x, const CutlassPyGemm& g) {
  return each_reduction(x, g, [](int, int32_t, int32_t, size_t) {});
}

inline void fill_reductions(ParametersWith<kMostOperands>& p, const Shape& x, const CutlassPyGemm& g, void* workspace) {
  each_reduction(x, g, [&](int i, int32_t lines, int32_t parts, size_t offset) {
    p.operand[i].data = static_cast<char*>(workspace) + offset;
    p.operand[i].row = lines, p.operand[i].batch = parts;
  });
}

constexpr int64_t kMostTiles = 1 << 30;

// Groups of lines: as many tiles as all lines together have, and one more of each group, which may end within one.
inline int64_t most_tiles(const Shape& x, const CutlassPyGemm& g, int64_t tiles_m, int64_t tiles_n) {
  if (x.grouping != Grouping::lines || g.groups.kind == CUTLASS_PY_GROUP_FIRST) return tiles_m * tiles_n * g.batch;
  return groups_right(x, g) ? (tiles_n + g.batch) * tiles_m : (tiles_m + g.batch) * tiles_n;
}

inline void fill_groups(Parameters& p, const Shape& x, const CutlassPyGemm& g, int64_t rows, int64_t columns) {
  const bool right = groups_right(x, g);
  const int64_t total = x.grouping == Grouping::depth ? g.k : right ? columns : rows;
  p.groups = {g.groups.numbers, g.batch, int32_t(total), g.groups.kind, g.groups.wide != 0};
  p.groups_right = right;
  const int64_t tile_m = x.m * x.cluster_m, tile_n = x.n * x.cluster_n;
  const int64_t tiles_m = ceil_div(rows, tile_m), tiles_n = ceil_div(columns, tile_n);
  p.group_tile = int32_t(right ? tile_n : tile_m), p.group_others = int32_t(right ? tiles_m : tiles_n);
}

inline int fill(ParametersWith<kMostOperands>& p, const Shape& x, const CutlassPyGemm& g,
                const CutlassPyLaunch& launch) {
  const int64_t rows = rows_of(x, g), columns = columns_of(x, g);
  const int64_t tiles_m = ceil_div(rows, x.m * x.cluster_m), tiles_n = ceil_div(columns, x.n * x.cluster_n);
  const int64_t tiles = most_tiles(x, g, tiles_m, tiles_n);
  // Of all blocks each looks once for a tile behind the last one, which has a number too.
  if (tiles_m <= 0 || tiles_n <= 0 || g.batch <= 0 || launch.swizzle <= 0 || tiles > kMostTiles - 2 * launch.sm_count) {
    return cudaErrorInvalidValue;
  }
  const bool along_m = launch.raster ? (launch.raster == 1) != x.swap : tiles_n > tiles_m;
  p.order = TileOrder(tiles_m, tiles_n, g.batch, launch.swizzle, along_m);
  p.order.count = int32_t(tiles);
  // Slices begin where every kernel begins them, whatever its depth: at every other line.
  p.slice_steps = int32_t(ceil_div(ceil_div(g.k, 2 * x.line()), x.slices) * 2 / x.lines);
  p.slices = Divisor(x.slices);
  p.steps = int32_t(ceil_div(g.k, x.lines * x.line()));
  p.end_m = int32_t(rows), p.end_n = int32_t(columns);
  p.epilogue = EpilogueArguments(g.epilogue, g.pairs, x.swap);
  p.turned = x.swap;
  if (x.grouping != Grouping::none) fill_groups(p, x, g, rows, columns);
  fill_factors(p, x, g.epilogue);
  if (int error = encode_operands(p, x, g)) return error;
  for (int i = 0; i < x.operands; ++i) {
    if (int error = fill_operand(p.operand[i], x, x.beside[i], g)) return error;
  }
  fill_reductions(p, x, g, launch.workspace);
  return encode_matrix(p.d, x, g, x.d_size, g.d, g.ldd, g.batch_d);
}

// A kernel's parameters, and how it is launched.
struct Launch {
  ParametersWith<kMostOperands> p;  // a kernel takes as much of it as it has operands
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
};

// `launcher` is the kernel's own, and prepared.
inline int fill(Launch& to, DriverLauncher& launcher, const Shape& x, const CutlassPyGemm& g,
                const CutlassPyLaunch& launch) {
  auto& [p, attributes, config] = to;
  if (int error = fill(p, x, g, launch)) return error;
  config.blockDim = unsigned(kThreads), config.dynamicSmemBytes = size_t(x.shared_bytes);
  config.stream = cudaStream_t(launch.stream), config.attrs = attributes;
  int clusters = launch.sm_count;
  if (x.cluster() > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(x.cluster()), 1, 1};
    config.gridDim = unsigned(launch.sm_count / x.cluster() * x.cluster());
    if (x.blocks_of_tile() == 1) {
      if (int error = launcher.clusters_at_once(config, launch.device, clusters)) return error;
    }
  }
  if (launch.overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  const bool one_each = x.blocks_of_tile() > 1;  // where the blocks of a cluster share a tile
  if (one_each || clusters > p.order.count) clusters = p.order.count;
  config.gridDim = unsigned(clusters) * unsigned(x.cluster());
  return 0;
}

// What joins the parts of reductions, behind a kernel that was launched.
struct Joining {
  AllJoined<kMostOperands> p;  // a kernel takes as many as it has
  cudaLaunchAttribute overlap{};
  cudaLaunchConfig_t config{};
};
// Of how many; 0 where nothing is left to join.
inline int fill(Joining& to, const Shape& x, const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
  int count = 0, lines_at_most = 0, products_at_most = 0;
  each_reduction(x, g, [&](int i, int32_t lines, int32_t parts, size_t offset) {
    const bool of_all = x.beside[i].index == Beside::column_sums;  // products together
    const CutlassPyArray& array = of_all ? g.epilogue.bias_grad : g.epilogue.user[x.beside[i].index].array;
    const int32_t times = of_all ? g.batch : 1;
    const int64_t step = x.beside[i].reduces == Reduces::rows ? array.row : array.col;
    const auto* from = reinterpret_cast<const float*>(static_cast<const char*>(launch.workspace) + offset);
    auto* values = static_cast<float*>(array.data);
    const int32_t products = g.batch / times;
    to.p.each[count++] = {from, values, lines, parts * times, products, step, array.batch};
    if (lines > lines_at_most) lines_at_most = lines;
    if (products > products_at_most) products_at_most = products;
  });
  to.overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  to.overlap.val.programmaticStreamSerializationAllowed = 1;
  to.config.gridDim = {unsigned(ceil_div(lines_at_most, kLinesAtOnce)), unsigned(count),
                       unsigned(products_at_most < 65535 ? products_at_most : 65535)};
  to.config.blockDim = unsigned(kJoiningThreads), to.config.stream = cudaStream_t(launch.stream);
  to.config.attrs = &to.overlap, to.config.numAttrs = launch.overlap ? 1 : 0;
  return count;
}

template <int operands>
int run(void (*kernel)(ParametersWith<operands>), DriverLauncher& launcher, const Shape& x, const CutlassPyGemm& g,
        const CutlassPyLaunch& launch) {
  Launch made;
  if (int error = launcher.prepare(reinterpret_cast<const void*>(kernel), x.shared_bytes, launch.device)) return error;
  if (int error = fill(made, launcher, x, g, launch)) return error;
  return launcher.launch(kernel, made.config, reinterpret_cast<ParametersWith<operands>&>(made.p), launch.device);
}

}  // namespace cutlass_py::sm90
