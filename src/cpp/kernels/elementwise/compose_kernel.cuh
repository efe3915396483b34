// The kernels of the composed epilogue: compose_kernel, column_sums_kernel where there is nothing else to do, and
// finish_kernel for the sums of bias_grad.
//
// Bound by memory. One kernel serves every combination of dtypes and strides (finish.cuh). The four elements of a row
// that a thread holds are neighbours where every operand can be read by vectors of four; otherwise they lie a warp's
// width apart, and any stride will do.
#pragma once

#include "abi/activation.h"
#include "kernels/common/finish.cuh"

namespace cutlass_py {

// What fused epilogues are told means the same.
#define CUTLASS_PY_ACTIVATION(NAME, COUNT, DERIVATIVE, ...)               \
  static_assert(int(activation::Number::NAME) == int(Activation::NAME) && \
                activation::is_derivative(activation::Number::NAME) == DERIVATIVE);
#include "activations.inc"
#undef CUTLASS_PY_ACTIVATION

constexpr int kThreads = 256;
constexpr int kElements = 4;   // of a row, by one thread
constexpr int kSomeParts = 4;  // of the product, read at once
constexpr int kSomeRows = 4;   // likewise, where there is nothing to do but sums

enum class Sums { none, of_columns, of_rows };

struct Compose : Finish {
  Array acc;
  int parts;
  int64_t part_stride;
  // One block: `passes` times kThreads >> lanes_log2 rows, by kElements << lanes_log2 columns.
  int64_t batch;
  uint32_t rows, cols, tiles_per_row;
  int lanes_log2, passes;
  Sums sums;
  void* partial;
};

// Where a thread of a block begins; the rows of a pass are `lines` apart.
template <bool kVector>
__device__ Place first_place(const Compose& p) {
  const uint32_t lane = threadIdx.x & ((1u << p.lanes_log2) - 1), line = threadIdx.x >> p.lanes_log2;
  Place at;
  at.batch = blockIdx.y;
  at.col = (blockIdx.x % p.tiles_per_row * kElements << p.lanes_log2) + (kVector ? kElements * lane : lane);
  at.step = kVector ? 1 : 1u << p.lanes_log2;
  at.row = blockIdx.x / p.tiles_per_row * p.passes * (kThreads >> p.lanes_log2) + line;
  return at;
}

// The sum over the parts of the product, in their order. Parts of s32 wrap around, as the accumulator does.
template <class T, bool kVector>
__device__ void add_parts(const Compose& p, const Place& at, int count, T (&sum)[kElements]) {
  Word<T> integers[kElements] = {};
  for (int first = 0; first < p.parts; first += kSomeParts) {
    alignas(16) Word<T> words[kSomeParts][kElements] = {};
    Array part = p.acc;
    part.data += first * p.part_stride;
#pragma unroll
    for (int i = 0; i < kSomeParts; ++i, part.data += p.part_stride) {
      if (first + i < p.parts) load<T, kVector>(part, at, count, words[i]);
    }
#pragma unroll
    for (int i = 0; i < kSomeParts; ++i) {
      if (first + i >= p.parts) break;
      T value[kElements];
      numbers_of<T, kVector>(p.acc, words[i], value);
#pragma unroll
      for (int j = 0; j < kElements; ++j) sum[j] += value[j], integers[j] += words[i][j];
    }
  }
  if (p.acc.dtype == Dtype::s32) decode<false, T>(Dtype::s32, integers, sum);
}

// y for the elements at a place, but for scale_out; aux is written here.
template <class T, bool kVector, bool kPlain>
__device__ void epilogue(const Compose& p, const Factors<T>& factors, const Place& at, int count, T (&y)[kElements]) {
  alignas(16) Word<T> acc[kElements] = {};  // travels together with the matrices beside it
  if (kPlain && p.acc.data) load<T, kVector>(p.acc, at, count, acc);
  const auto product = [&](T(&z)[kElements]) {
    if constexpr (kPlain) numbers_of<T, kVector>(p.acc, acc, z);
    if constexpr (!kPlain) add_parts<T, kVector>(p, at, count, z);
  };
  finish<T, kVector>(p, factors, at, count, p.acc.data, product, y);
}

// ------------------------------------------------------------------------------------------------ kernels

// Sums of the rows of one pass, over the block's columns, to this block's row of `partial`. In the order of a fixed
// tree: the same bits on every run.
template <class T>
__device__ void store_row_sums(const Compose& p, uint32_t row, T sum) {
  const int lanes = 1 << p.lanes_log2;
  for (int distance = lanes / 2; distance; distance /= 2) sum += __shfl_down_sync(~0u, sum, distance, lanes);
  if (threadIdx.x % lanes || row >= p.rows) return;
  const int64_t slot = int64_t(blockIdx.y) * p.tiles_per_row + blockIdx.x % p.tiles_per_row;
  static_cast<T*>(p.partial)[slot * p.rows + row] = sum;
}

// Sums of the block's columns, over its rows. Likewise.
template <class T>
__device__ void store_column_sums(const Compose& p, const Place& at, int count, T (&sum)[kElements]) {
  __shared__ T lines[kThreads][kElements];
  for (int half = kThreads / 2; half >= 1 << p.lanes_log2; half /= 2) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kElements; ++i) lines[threadIdx.x][i] = sum[i];
    __syncthreads();
    if (int(threadIdx.x) >= half) continue;
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum[i] += lines[threadIdx.x + half][i];
  }
  if (threadIdx.x >> p.lanes_log2) return;
  const int64_t tiles_down = gridDim.x / p.tiles_per_row;
  const int64_t slot = blockIdx.y * tiles_down + blockIdx.x / p.tiles_per_row;
  T* to = static_cast<T*>(p.partial) + slot * p.cols + at.col;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < count) to[i * at.step] = sum[i];
  }
}

// Blocks on a multiprocessor: as many bytes on their way as registers allow without spilling.
template <class T, bool kVector, bool kPlain>
constexpr int kBlocks = sizeof(T) == 8 ? 1
                        : kVector      ? (kPlain ? 5 : 3)
                                       : (kPlain ? 3 : 2);

// kPlain: the product is in one part, and nothing is summed.
template <class T, bool kVector, bool kPlain>
__global__ void __launch_bounds__(kThreads, kBlocks<T, kVector, kPlain>)
    compose_kernel(const __grid_constant__ Compose p) {
  const uint32_t lines = kThreads >> p.lanes_log2;
  Place at = first_place<kVector>(p);
  int count = 0;  // of the thread's elements that exist
  if (at.col < p.cols) count = kVector ? kElements : min(kElements, int((p.cols - at.col - 1) >> p.lanes_log2) + 1);
  const Factors<T> factors(p);
  T column_sums[kElements] = {};
  for (int pass = 0; pass < p.passes; ++pass, at.row += lines) {
    T row_sum = 0;
    const bool inside = at.row < p.rows && count > 0;
    for (at.batch = blockIdx.y; inside && at.batch < p.batch; at.batch += gridDim.y) {
      T y[kElements];
      epilogue<T, kVector, kPlain>(p, factors, at, count, y);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (!kPlain && i < count) column_sums[i] += y[i], row_sum += y[i];
        y[i] *= factors.scale_out;
      }
      if (p.d.data) store<T, kVector>(p.d, at, count, y);
    }
    if (!kPlain && p.sums == Sums::of_rows) store_row_sums(p, at.row, row_sum);
  }
  if (!kPlain && p.sums == Sums::of_columns) store_column_sums(p, at, count, column_sums);
}

// The column sums of a product that is finished, by vectors: several rows are on their way at once.
static __global__ void __launch_bounds__(kThreads) column_sums_kernel(const __grid_constant__ Compose p) {
  const uint32_t lines = kThreads >> p.lanes_log2;
  const Place first = first_place<true>(p);
  const int count = first.col < p.cols ? kElements : 0;
  float sum[kElements] = {};
  for (int64_t batch = first.batch; count && batch < p.batch; batch += gridDim.y) {
    for (int pass = 0; pass < p.passes; pass += kSomeRows) {
      alignas(16) Word<float> words[kSomeRows][kElements] = {};
#pragma unroll
      for (int i = 0; i < kSomeRows; ++i) {
        const Place at{batch, first.row + (pass + i) * lines, first.col, 1};
        if (pass + i < p.passes && at.row < p.rows) load<float, true>(p.acc, at, count, words[i]);
      }
#pragma unroll
      for (int i = 0; i < kSomeRows; ++i) {
        float value[kElements];
        numbers_of<float, true>(p.acc, words[i], value);
#pragma unroll
        for (int j = 0; j < kElements; ++j) sum[j] += value[j];
      }
    }
  }
  store_column_sums(p, first, count, sum);
}

constexpr int kFinishWidth = 32, kFinishDepth = 8;

// bias_grad[i] = the sum of slots of partial[slot][i], in a fixed order.
template <class T>
__global__ void __launch_bounds__(kFinishWidth* kFinishDepth)
    finish_kernel(const T* partial, int64_t slots, int64_t extent, Array bias_grad, int64_t stride) {
  __shared__ T sums[kFinishDepth][kFinishWidth];
  const int64_t i = int64_t(blockIdx.x) * kFinishWidth + threadIdx.x;
  T sum = 0;
  if (i < extent) {
#pragma unroll 4
    for (int64_t slot = threadIdx.y; slot < slots; slot += kFinishDepth) sum += partial[slot * extent + i];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || i >= extent) return;
  for (int j = 1; j < kFinishDepth; ++j) sum += sums[j][threadIdx.x];
  const T total[1] = {sum};
  encode(bias_grad.dtype, total, [&](const auto& bits) {
    *reinterpret_cast<std::decay_t<decltype(bits[0])>*>(bias_grad.data + i * stride) = bits[0];
  });
}

}  // namespace cutlass_py
