// The composed epilogue: whatever no GEMM kernel fuses, in one pass over its product (CutlassPyEpilogue in kernel.h).
#include <algorithm>

#include "kernels/elementwise/compose_kernel.cuh"
#include "kernels/elementwise/elementwise.h"

namespace cutlass_py {
namespace {

// How blocks cover the problem. Nothing but extents decides, so that sums are added in the same order every time.
struct Shape {
  int lanes_log2 = 0, passes = 1;
  int64_t tiles_per_row, tiles_down, depth;  // depth: blocks along the batch

  Shape(int64_t batch, int64_t rows, int64_t cols, bool summed) {
    while (lanes_log2 < 5 && kElements << lanes_log2 < cols) ++lanes_log2;
    const int64_t lines = kThreads >> lanes_log2;
    // At least one block, whose sums over nothing are zeros.
    tiles_per_row = std::max<int64_t>(1, ceil_div(cols, kElements << lanes_log2));
    const int64_t down = std::max<int64_t>(1, ceil_div(rows, lines));
    // Blocks enough for every multiprocessor, then more rows for each: fewer partial sums, and indices to compute.
    passes = int(std::clamp<int64_t>(tiles_per_row * down * batch / 2048, 1, 4));
    if (summed) passes = int(std::max<int64_t>(passes, ceil_div(down, std::max<int64_t>(64, 1024 / tiles_per_row))));
    tiles_down = ceil_div(down, passes);
    depth = std::clamp<int64_t>(batch, 1, kMostBlocksY);
    if (summed) depth = std::min(depth, ceil_div(1024, tiles_per_row * tiles_down));
  }
  int64_t slots(Sums sums) const { return depth * (sums == Sums::of_columns ? tiles_down : tiles_per_row); }
};

// A bias gradient has a stride of 0 along the axis that is summed; where both are 0, one extent is 1.
Sums sums_of(const CutlassPyArray& bias_grad, int64_t cols) {
  if (!bias_grad.data) return Sums::none;
  return bias_grad.row == 0 && (bias_grad.col != 0 || cols == 1) ? Sums::of_columns : Sums::of_rows;
}

// Whether four neighbours can be read at once; `repeats`: or one element four times.
bool by_vectors(const Array& x, bool repeats) {
  if (!x.data || (repeats && x.col == 0)) return true;
  return x.col == x.size && (reinterpret_cast<uintptr_t>(x.data) | x.row | x.batch) % (kElements * x.size) == 0;
}

bool by_vectors(const Compose& p) {
  for (const Array* x : {&p.acc, &p.c, &p.bias, &p.scale_a, &p.scale_b, &p.argument}) {
    if (!by_vectors(*x, true)) return false;
  }
  return p.cols % kElements == 0 && by_vectors(p.d, false) && by_vectors(p.aux, false) &&
         p.part_stride % (kElements * std::max(p.acc.size, 1)) == 0;
}

// Whether a product is summed as it is.
bool only_column_sums(const Compose& p) {
  for (const Array* x : {&p.c, &p.bias, &p.scale_a, &p.scale_b, &p.argument, &p.aux, &p.d}) {
    if (x->data) return false;
  }
  const bool as_it_is =
      p.activation == activation::Number::identity && !p.alpha.device && p.alpha.value == 1 && p.parts <= 1;
  return as_it_is && p.acc.data && p.sums == Sums::of_columns;
}

// Double where that is what is computed in, read or not, or where any array holds f64, or where integers beyond 2^24
// have to stay exact.
bool in_double(const Compose& p, const CutlassPyArray& bias_grad) {
  if (p.factor_dtype == Dtype::f64) return true;
  const auto is = [](const Array& x, Dtype dtype) { return x.data && x.dtype == dtype; };
  for (const Array* x : {&p.c, &p.bias, &p.scale_a, &p.scale_b, &p.argument, &p.aux, &p.d}) {
    if (is(*x, Dtype::f64)) return true;
  }
  if (p.sums != Sums::none && Dtype(bias_grad.dtype) == Dtype::f64) return true;
  return is(p.c, Dtype::s32) || is(p.bias, Dtype::s32) || (is(p.acc, Dtype::s32) && is(p.d, Dtype::s32));
}

auto* kernel_for(const Compose& p, bool wide) {
  const bool plain = p.parts <= 1 && p.sums == Sums::none;
  if (wide) return &compose_kernel<double, false, false>;
  if (!by_vectors(p)) return plain ? &compose_kernel<float, false, true> : &compose_kernel<float, false, false>;
  if (only_column_sums(p)) return &column_sums_kernel;
  return plain ? &compose_kernel<float, true, true> : &compose_kernel<float, true, false>;
}

template <class T>
int finish(const Compose& p, const Shape& shape, const CutlassPyArray& bias_grad, cudaStream_t stream) {
  const bool of_columns = p.sums == Sums::of_columns;
  const int64_t extent = of_columns ? p.cols : p.rows, slots = shape.slots(p.sums);
  const Array to = array_of(bias_grad);
  if (extent == 0) return 0;
  return queue(finish_kernel<T>, unsigned(ceil_div(extent, kFinishWidth)), dim3(kFinishWidth, kFinishDepth), stream,
               static_cast<const T*>(p.partial), slots, extent, to, of_columns ? to.col : to.row);
}

int launch(const Compose& p, const Shape& shape, const CutlassPyArray& bias_grad, cudaStream_t stream) {
  const int64_t blocks = shape.tiles_per_row * shape.tiles_down;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (p.batch * p.rows * p.cols == 0 && p.sums == Sums::none) return 0;
  const dim3 grid(unsigned(blocks), unsigned(shape.depth));
  const bool wide = in_double(p, bias_grad);
  if (int error = queue(kernel_for(p, wide), grid, kThreads, stream, p)) return error;
  if (p.sums == Sums::none) return 0;
  return wide ? finish<double>(p, shape, bias_grad, stream) : finish<float>(p, shape, bias_grad, stream);
}

}  // namespace

int compose(const CutlassPyArray* acc, int32_t parts, int64_t part_stride, const CutlassPyEpilogue* epilogue,
            const CutlassPyArray* d, int64_t batch, int64_t rows, int64_t cols, void* workspace, void* stream) {
  const CutlassPyEpilogue& e = *epilogue;
  if (is_complex(Dtype(d->dtype))) {
    return compose_complex(acc, parts, part_stride, e, *d, batch, rows, cols, cudaStream_t(stream));
  }
  const bool turn = runs_along_rows(*d, rows, cols);
  if (turn) std::swap(rows, cols);
  const auto oriented = [&](const CutlassPyArray& x) { return turn ? transposed(x) : x; };
  const CutlassPyArray bias_grad = oriented(e.bias_grad);

  Compose p{};
  static_cast<Finish&>(p) = finish_of(e, *d, scalar_dtype(Dtype(acc->dtype)), oriented);
  if (acc->data) p.acc = array_of(oriented(*acc));
  p.parts = parts, p.part_stride = part_stride * p.acc.size;
  p.sums = sums_of(bias_grad, cols);
  const Shape shape(batch, rows, cols, p.sums != Sums::none);
  p.batch = batch, p.rows = uint32_t(rows), p.cols = uint32_t(cols), p.tiles_per_row = uint32_t(shape.tiles_per_row);
  p.lanes_log2 = shape.lanes_log2, p.passes = shape.passes;
  p.partial = workspace;
  return launch(p, shape, bias_grad, cudaStream_t(stream));
}

// For either orientation: only compose() sees how D lies.
size_t compose_workspace(const CutlassPyEpilogue* epilogue, int64_t batch, int64_t rows, int64_t cols) {
  const auto bytes = [batch](const CutlassPyArray& bias_grad, int64_t r, int64_t c) {
    const Sums sums = sums_of(bias_grad, c);
    const int64_t extent = sums == Sums::of_columns ? c : r;
    return size_t(Shape(batch, r, c, true).slots(sums) * extent * int64_t(sizeof(double)));
  };
  const CutlassPyArray& bias_grad = epilogue->bias_grad;
  if (!bias_grad.data) return 0;
  return std::max(bytes(bias_grad, rows, cols), bytes(transposed(bias_grad), cols, rows));
}

}  // namespace cutlass_py
