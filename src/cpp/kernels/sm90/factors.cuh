// Factors of blocks: one for every line of k and so many rows of the left operand, and columns of the right one.
#pragma once

#include "kernels/sm90/vectors.cuh"

namespace cutlass_py::sm90 {

// What a thread's numbers of a line are multiplied by, of 64 rows: as they are read, and as they are applied.
//
// Columns that share a factor are those of a whole tile, or each has its own: those lie in shared memory.
template <class X, bool any = (X::left_group > 0)>
struct Factors {
  struct Line {};
  __device__ Factors(const Parameters&, const SharedMemory<X>&, const PartPlace&, const Steps&, int) {}
  __device__ Line read(int, int) const { return {}; }
  template <int count>
  static __device__ void add(const float (&part)[count], float (&sums)[count], const Line&) {
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] += part[i];
  }
};

template <class X>
struct Factors<X, true> {
  static constexpr bool by_column = X::factor_columns > 0;
  // Rows of a warpgroup share a factor, which goes into those of the columns; or each has its own.
  static constexpr bool into_columns = by_column && X::left_group % X::rows == 0;
  static constexpr int most = (X::N + 127) / 128;  // columns that a thread looks after
  static_assert(by_column || X::right_group % X::N == 0);

  struct Line {
    float left[2], right;
    Address columns;
  };

  const BlockFactors &of_left, &of_right;
  const int m, end_m, end, barrier;
  const Address lines;
  const float *left, *right[most];  // of all lines, or of the next one that is read ahead
  float ahead_left = 0, ahead_right[most]{};
  int next;

  // Of a warpgroup's rows from the place on.
  __device__ Factors(const Parameters& p, const SharedMemory<X>& shared, const PartPlace& at, const Steps& steps,
                     int warpgroup)
      : of_left(p.left_factors),
        of_right(p.right_factors),
        m(at.m + int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4),
        end_m(p.end_m),
        end(steps.end),
        barrier(1 + warpgroup),
        lines(shared.factors_of(warpgroup)),
        left(of_left.data + at.batch * of_left.batch),
        next(steps.begin) {
    if constexpr (into_columns) left += min(at.m, end_m - 1) / X::left_group * of_left.along + next * of_left.k;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int column = by_column ? min(i * 128 + int(threadIdx.x) % 128, X::N - 1) : 0;
      const int group = min(at.n + column, p.end_n - 1) / X::right_group;
      right[i] = of_right.data + at.batch * of_right.batch + group * of_right.along;
      if constexpr (by_column) right[i] += next * of_right.k;
    }
    if constexpr (by_column) read_ahead();
  }

  // For a block of 64 rows. Columns' factors are read a line ahead, by all threads of the warpgroup for each other.
  // Three lines have room: while a warp writes one, others may add the last but one, and have the last to come. From
  // tile to tile all meet where a part is sent.
  __device__ Line read(int rows, int line) {
    Line x;
    if constexpr (by_column) {
      x.columns = lines + line % X::kFactorLines * X::factor_columns * 4;
      if (rows == 0) {
#pragma unroll
        for (int i = 0; i < most; ++i) {
          const int column = i * 128 + int(threadIdx.x) % 128;
          const float factor = into_columns ? ahead_left * ahead_right[i] : ahead_right[i];
          if (column < X::N) store_shared(x.columns + Vectors<X>::Staged::place(column) * 4, __float_as_uint(factor));
        }
        read_ahead();
        named_barrier(barrier);
      }
    }
    if constexpr (!into_columns) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = min(m + rows * 64 + i * 8, end_m - 1);
        x.left[i] = left[row / X::left_group * of_left.along + line * of_left.k];
      }
    }
    if constexpr (!by_column) x.right = right[0][line * of_right.k];
    return x;
  }

  template <int count>
  static __device__ void add(const float (&part)[count], float (&sums)[count], const Line& x) {
    if constexpr (by_column) {
#pragma unroll
      for (int i = 0; i < count; i += 8) {
        float columns[4];
        load_shared(x.columns + i * 8 + threadIdx.x % 4 * 16, columns);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float column = columns[j / 4 * 2 + j % 2];
          sums[i + j] += part[i + j] * (into_columns ? column : column * x.left[j / 2 % 2]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) sums[i] += part[i] * (x.left[i / 2 % 2] * x.right);
    }
  }

 private:
  __device__ void read_ahead() {
    if (next++ >= end) return;
    if constexpr (into_columns) ahead_left = *left, left += of_left.k;
#pragma unroll
    for (int i = 0; i < most; ++i) ahead_right[i] = *right[i], right[i] += of_right.k;
  }
};

}  // namespace cutlass_py::sm90
