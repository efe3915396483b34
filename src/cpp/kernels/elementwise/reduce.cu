// Sums and extremes of lines of f32 or f64, in an order that nothing but extents and strides decides: the same bits on
// every run.
//
// Bound by memory. A block takes some lines, or a part of a line that is long; the parts go to the workspace, and a
// second launch joins them. Threads that load at once load neighbours: of one line where lines run along their columns,
// of neighbouring lines otherwise.
#include <algorithm>
#include <limits>

#include "kernels/elementwise/elementwise.h"

namespace cutlass_py {
namespace {

constexpr int kThreadsLog2 = 8, kThreads = 1 << kThreadsLog2;
constexpr int kWarpLog2 = 5;
constexpr int64_t kBlocks = 1024;  // enough for every multiprocessor
constexpr int64_t kLeast = 16;     // elements for each thread, below which a line is not cut

enum class Reduction : int32_t { sum, max, min };  // as numbered in kernel.h

// How blocks cover the lines.
struct Shape {
  bool across;          // neighbouring threads are on neighbouring lines
  int lanes_log2 = 0;   // threads on a line
  int64_t groups;       // of lines: each is a block's
  int64_t parts, part;  // of a line, and the elements of each

  Shape(const CutlassPyArray& from, int64_t batch, int64_t lines, int64_t length) {
    across = lines > 1 && std::llabs(from.row) < std::llabs(from.col);
    const int64_t side = across ? lines : length;
    const int most = across ? kWarpLog2 : kThreadsLog2;
    int side_log2 = 0;
    while (side_log2 < most && int64_t(1) << side_log2 < side) ++side_log2;
    lanes_log2 = across ? kThreadsLog2 - side_log2 : side_log2;
    groups = ceil_div(lines, kThreads >> lanes_log2);
    const int64_t wanted = ceil_div(kBlocks, std::max<int64_t>(1, groups * batch));
    part = ceil_div(length, std::clamp<int64_t>(length / (kLeast << lanes_log2), 1, wanted));
    part = std::max<int64_t>(part, 1);
    parts = std::max<int64_t>(ceil_div(length, part), 1);
  }
};

// One launch: strides in elements; `to` has a value for each part of each line.
template <class T>
struct Lines {
  const T* from;
  T* to;
  int64_t from_batch, from_line, from_step, to_batch, to_line;
  int64_t batch, lines, length, parts, part;
  int lanes_log2;
  bool across;
  Reduction reduction;
};

template <class T>
__device__ T joined(T x, T y, Reduction reduction) {
  if (reduction == Reduction::sum) return x + y;
  const bool first = reduction == Reduction::max ? x > y : x < y;
  return first || x != x ? x : y;  // NaN goes through
}

template <class T>
__global__ void __launch_bounds__(kThreads) reduce_kernel(const __grid_constant__ Lines<T> p, T nothing) {
  __shared__ T shared[kThreads];
  const int thread = threadIdx.x, lanes = 1 << p.lanes_log2, beside = kThreads >> p.lanes_log2;
  const int lane = p.across ? thread / beside : thread % lanes;
  const int64_t line = blockIdx.x / p.parts * beside + (p.across ? thread % beside : thread / lanes);
  const int64_t part = blockIdx.x % p.parts, first = part * p.part, last = min(first + p.part, p.length);
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    T value = nothing;
    if (line < p.lines) {
      const T* from = p.from + batch * p.from_batch + line * p.from_line;
#pragma unroll 8
      for (int64_t i = first + lane; i < last; i += lanes) value = joined(value, from[i * p.from_step], p.reduction);
    }
    for (int half = lanes / 2; half; half /= 2) {
      __syncthreads();
      shared[thread] = value;
      __syncthreads();
      if (lane < half) value = joined(value, shared[thread + half * (p.across ? beside : 1)], p.reduction);
    }
    if (lane == 0 && line < p.lines) p.to[batch * p.to_batch + line * p.to_line + part] = value;
  }
}

template <class T>
int launch(const CutlassPyArray& from, const CutlassPyArray& to, Reduction reduction, const Shape& shape, int64_t batch,
           int64_t lines, int64_t length, cudaStream_t stream) {
  const int64_t blocks = shape.groups * shape.parts;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (blocks * batch == 0) return 0;
  const Lines<T> p{static_cast<const T*>(from.data),
                   static_cast<T*>(to.data),
                   from.batch,
                   from.row,
                   from.col,
                   to.batch,
                   to.row,
                   batch,
                   lines,
                   length,
                   shape.parts,
                   shape.part,
                   shape.lanes_log2,
                   shape.across,
                   reduction};
  const T infinity = std::numeric_limits<T>::infinity();
  const T nothing = reduction == Reduction::sum ? T(0) : reduction == Reduction::max ? -infinity : infinity;
  const dim3 grid(unsigned(blocks), unsigned(std::min(batch, kMostBlocksY)));
  return queue(reduce_kernel<T>, grid, kThreads, stream, p, nothing);
}

template <class T>
int reduce_as(const CutlassPyArray& from, const CutlassPyArray& to, Reduction reduction, int64_t batch, int64_t lines,
              int64_t length, void* workspace, cudaStream_t stream) {
  const Shape shape(from, batch, lines, length);
  if (shape.parts == 1) return launch<T>(from, to, reduction, shape, batch, lines, length, stream);
  const CutlassPyArray parts{workspace, from.dtype, shape.parts, 1, shape.parts * lines};
  if (int error = launch<T>(from, parts, reduction, shape, batch, lines, length, stream)) return error;
  return reduce_as<T>(parts, to, reduction, batch, lines, shape.parts, nullptr, stream);
}

}  // namespace

int reduce(const CutlassPyArray* from, const CutlassPyArray* to, int32_t reduction, int64_t batch, int64_t lines,
           int64_t length, void* workspace, void* stream) {
  auto* s = cudaStream_t(stream);
  switch (Dtype(from->dtype)) {
    case Dtype::f32: return reduce_as<float>(*from, *to, Reduction(reduction), batch, lines, length, workspace, s);
    case Dtype::f64: return reduce_as<double>(*from, *to, Reduction(reduction), batch, lines, length, workspace, s);
    default: return cudaErrorInvalidValue;
  }
}

size_t reduce_workspace(const CutlassPyArray* from, int64_t batch, int64_t lines, int64_t length) {
  const Shape shape(*from, batch, lines, length);
  return shape.parts == 1 ? 0 : size_t(batch * lines * shape.parts * dtype_size(Dtype(from->dtype)));
}

}  // namespace cutlass_py
