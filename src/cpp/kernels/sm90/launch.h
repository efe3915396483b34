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
#include "kernels/sm90/tensor_map.h"

namespace cutlass_py::sm90 {

inline int encode_operands(Parameters& p, const Shape& x, const CutlassPyGemm& g, int64_t rows, int64_t columns) {
  const auto matrices = [&](bool is_a, bool along, int64_t extent) {
    const int64_t inner = along ? extent : g.k, outer = along ? g.k : extent;
    return is_a ? Matrices{g.a, x.size, inner, outer, g.lda, g.batch, g.batch_a}
                : Matrices{g.b, x.size, inner, outer, g.ldb, g.batch, g.batch_b};
  };
  const Matrices left = matrices(!x.swap, x.left_along, rows), right = matrices(x.swap, x.right_along, columns);
  p.left_batch = !left.shared(), p.right_batch = !right.shared();
  const int error =
      x.left_along ? encode(p.left, left, 64, 64 / x.cluster_n) : encode(p.left, left, x.line(), x.m / x.cluster_n);
  if (error) return error;
  return x.right_along ? encode(p.right, right, panel_of(x.n), 64 / x.cluster_m)
                       : encode(p.right, right, x.line(), x.n / x.cluster_m);
}

// D, or what lies like it.
inline int encode_matrix(Operand& to, const Shape& x, const CutlassPyGemm& g, int size, void* data, int64_t row,
                         int64_t batch) {
  const Matrices given{data, size, g.n, g.m, row, g.batch, batch};
  to.data = data, to.row = row, to.batch = batch;
  to.batched = !given.shared();
  if (x.direct || !data) return 0;
  const int columns = x.columns;
  return x.swap ? encode(to.map, given, kLine / size, columns)
                : encode(to.map, given, part_panel(x.n, columns, size), 64);
}

// What a kernel reads or writes beside D: the only one that is given of these.
inline CutlassPyArray beside(const CutlassPyEpilogue& e) {
  if (e.c.data) return e.beta.device || e.beta.value != 0 ? e.c : CutlassPyArray{};
  return e.gate.data ? e.gate : e.aux;
}

inline int fill_operand(Operand& to, const Shape& x, const Beside& what, const CutlassPyGemm& g) {
  const bool users = what.index >= 0;
  const CutlassPyArray given = users ? g.epilogue.user[what.index].array : beside(g.epilogue);
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

inline int fill(ParametersWith<kMostOperands>& p, const Shape& x, const CutlassPyGemm& g,
                const CutlassPyLaunch& launch) {
  const int64_t rows = x.swap ? g.n : g.m, columns = x.swap ? g.m : g.n;
  const int64_t tiles_m = ceil_div(rows, x.m * x.cluster_m), tiles_n = ceil_div(columns, x.n * x.cluster_n);
  const int64_t count = tiles_m * tiles_n * g.batch;
  if (count > INT_MAX) return cudaErrorInvalidValue;
  const bool along_m = launch.raster ? (launch.raster == 1) != x.swap : tiles_n > tiles_m;
  p.order = {int32_t(tiles_m), int32_t(tiles_n), int32_t(count), launch.swizzle, along_m};
  p.slices = x.slices;
  p.steps = int32_t(ceil_div(g.k, x.lines * x.line()));
  p.end_m = int32_t(rows), p.end_n = int32_t(columns);
  p.epilogue = EpilogueArguments(g.epilogue, x.swap);
  p.turned = x.swap;
  fill_factors(p, x, g.epilogue);
  if (int error = encode_operands(p, x, g, rows, columns)) return error;
  for (int i = 0; i < x.operands; ++i) {
    if (int error = fill_operand(p.operand[i], x, x.beside[i], g)) return error;
  }
  return encode_matrix(p.d, x, g, x.d_size, g.d, g.ldd, g.batch_d);
}

// `launcher` is the kernel's own.
template <int operands>
int run(void (*kernel)(ParametersWith<operands>), DriverLauncher& launcher, const Shape& x, const CutlassPyGemm& g,
        const CutlassPyLaunch& launch) {
  const auto function = reinterpret_cast<const void*>(kernel);
  if (int error = launcher.prepare(function, x.shared_bytes, launch.device)) return error;
  ParametersWith<kMostOperands> p;  // a kernel takes as much of it as it has operands
  if (int error = fill(p, x, g, launch)) return error;

  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.blockDim = unsigned(kThreads), config.dynamicSmemBytes = size_t(x.shared_bytes);
  config.stream = cudaStream_t(launch.stream), config.attrs = attributes;
  int clusters = launch.sm_count;
  if (x.cluster() > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(x.cluster()), 1, 1};
    config.gridDim = unsigned(launch.sm_count / x.cluster() * x.cluster());
    if (x.slices == 1) {
      if (int error = launcher.clusters_at_once(function, config, launch.device, clusters)) return error;
    }
  }
  if (launch.overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (x.slices > 1 || clusters > p.order.count) clusters = p.order.count;  // of slices, each cluster has one tile
  config.gridDim = unsigned(clusters) * unsigned(x.cluster());
  return launcher.launch(kernel, config, reinterpret_cast<ParametersWith<operands>&>(p), launch.device);
}

}  // namespace cutlass_py::sm90
