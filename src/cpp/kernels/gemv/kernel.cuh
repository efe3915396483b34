// The kernel: a few vectors times a matrix, on the CUDA cores, as fast as memory brings the matrix.
//
// Warps of a block share out k; where the result has many columns, they have columns of their own as well. Parts of the
// vectors go through shared memory, and so do the sums of warps, which are added in their order: the same bits on every
// run.
#pragma once

#include "kernels/gemv/load.cuh"

namespace cutlass_py::gemv {

// Strides in bytes.
struct Parameters {
  const char *matrix, *vectors;
  int64_t line, matrix_batch;  // from one line of the matrix to the next
  int64_t row, step, vectors_batch;
  int rows, columns, k, batch;
  int sharing;            // warps of a block that share out k
  bool columns_are_rows;  // of D, as the matrix is A
  bool only_factor;       // is applied to sums: this one
  double factor;
  Finish finish;
};

__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A part of k of the vectors, as `Loads` reads it.
template <class Loads, class VectorDtype>
__device__ void stage(const Parameters& p, const char* vectors, int first_row, uint32_t begin, uint32_t end,
                      typename Loads::T* to) {
  constexpr int rows = Loads::rows, part = Loads::matrix.part(rows);
  const int length = int(end - begin + Loads::span - 1) / Loads::span * Loads::span;  // with zeros behind the end
  const auto copy = [&](int k, int row) {
    Number<VectorDtype> x[kPerWord<VectorDtype>] = {};
    if (begin + k < end && first_row + row < p.rows) {
      const char* from = vectors + (first_row + row) * p.row + int64_t(begin + k) * p.step;
      values_of<VectorDtype>(*reinterpret_cast<const typename VectorDtype::Type*>(from), x);
    }
    to[Loads::place(k, row, part)] = x[0];
  };
  if (p.row < p.step) {  // neighbours in memory
#pragma unroll 4
    for (int i = int(threadIdx.x); i < length * rows; i += int(blockDim.x)) copy(i / rows, i % rows);
  } else {
#pragma unroll
    for (int row = 0; row < rows; ++row) {
#pragma unroll 4
      for (int k = int(threadIdx.x); k < length; k += int(blockDim.x)) copy(k, row);
    }
  }
}

template <class T>
__device__ void leave(const Parameters& p, T sum, uint32_t row, uint32_t column, int batch) {
  const Place at = p.columns_are_rows ? Place{batch, column, row, 1} : Place{batch, row, column, 1};
  T y[1];
  if (p.only_factor) {
    y[0] = sum * T(p.factor);
  } else {
    const Factors<T> factors(p.finish);
    finish<T, false>(p.finish, factors, at, 1, true, [&](T(&z)[1]) { z[0] = sum; }, y);
    y[0] *= factors.scale_out;
  }
  store<T, false>(p.finish.d, at, 1, y);
}

// How the matrix is read, and so what a warp has of it.
template <class MatrixDtype, bool along_k, int rows, int bytes>
using Loads = std::conditional_t<along_k, AlongK<MatrixDtype, rows, bytes>, AlongColumns<MatrixDtype, rows, bytes>>;

template <class MatrixDtype, class VectorDtype, bool along_k, int rows, int bytes>
__global__ void __launch_bounds__(32 * kMostWarps) kernel(const __grid_constant__ Parameters p) {
  using Loads = gemv::Loads<MatrixDtype, along_k, rows, bytes>;
  using T = typename Loads::T;
  constexpr int part = Loads::matrix.part(rows);
  alignas(16) __shared__ T vectors[part * rows];
  __shared__ T sums[kMostWarps * Loads::columns * rows];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, share = warp % p.sharing;
  const int of_block = int(blockDim.x) / 32 / p.sharing * Loads::columns, own = warp / p.sharing * Loads::columns;
  const uint32_t first = blockIdx.x * of_block;  // may be a little more than an int holds
  const int groups = (p.rows + rows - 1) / rows;
  wait_for_predecessor();
  for (int64_t i = blockIdx.y; i < int64_t(groups) * p.batch; i += gridDim.y) {
    const int batch = int(i / groups), first_row = int(i % groups) * rows;
    const char* matrix = p.matrix + batch * p.matrix_batch;
    typename Loads::Sums held = {};
    for (uint32_t begin = 0; begin < uint32_t(p.k); begin += part) {
      const uint32_t end = min(begin + part, uint32_t(p.k));
      Loads loads;
      uint32_t k = begin + share * Loads::span;
      loads.load(matrix, p.line, first + own, uint32_t(p.columns), k, end, lane);
      if (begin) __syncthreads();  // all have read the part before
      stage<Loads, VectorDtype>(p, p.vectors + batch * p.vectors_batch, first_row, begin, end, vectors);
      __syncthreads();
      while (k < end) {
        loads.multiply(vectors, part, k - begin, lane, held);
        k += p.sharing * Loads::span;
        if (k < end) loads.load(matrix, p.line, first + own, uint32_t(p.columns), k, end, lane);
      }
    }
    Loads::finish(held, lane,
                  [&](int column, int row, T sum) { sums[(share * of_block + own + column) * rows + row] = sum; });
    __syncthreads();
    for (int i = int(threadIdx.x); i < of_block * rows; i += int(blockDim.x)) {
      T sum = 0;
      for (int j = 0; j < p.sharing; ++j) sum += sums[j * of_block * rows + i];
      const int row = first_row + i % rows;
      const uint32_t column = first + i / rows;
      if (row < p.rows && column < uint32_t(p.columns)) leave(p, sum, row, column, batch);
    }
    __syncthreads();  // all have read the sums before those of the next product
  }
}

}  // namespace cutlass_py::gemv
