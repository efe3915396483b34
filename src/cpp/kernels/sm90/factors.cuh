// Factors of blocks: one for every line of k and so many rows of the left operand, and columns of the right one.
#pragma once

#include "kernels/sm90/parameters.cuh"

namespace cutlass_py::sm90 {

// What a thread's numbers of a line are multiplied by, of 64 rows: as they are read, and as they are applied.
//
// Columns that share a factor are those of a whole tile, or each has its own.
template <class X, bool any = (X::left_group > 0)>
struct Factors {
  struct Line {};
  __device__ Factors(const Parameters&, int, int, int) {}
  __device__ Line read(int, int) const { return {}; }
  template <int count>
  static __device__ void add(const float (&part)[count], float (&sums)[count], const Line&) {
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] += part[i];
  }
};

template <class X>
struct Factors<X, true> {
  static constexpr bool by_column = X::right_group == 1;
  static constexpr int columns = by_column ? X::N / 4 : 1;
  static_assert(by_column || X::right_group % X::N == 0);

  struct Line {
    float left[2], right[columns];
  };

  const BlockFactors &of_left, &of_right;
  const int m, n, end_m, end_n;  // the first of this thread's
  int64_t left_offset, right_offset;

  __device__ Factors(const Parameters& p, int m, int n, int batch)
      : of_left(p.left_factors),
        of_right(p.right_factors),
        m(m + int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4),
        n(by_column ? n + int(threadIdx.x) % 4 * 2 : n),
        end_m(p.end_m),
        end_n(p.end_n),
        left_offset(batch * p.left_factors.batch),
        right_offset(batch * p.right_factors.batch) {}

  // For a block of 64 rows.
  __device__ Line read(int rows, int line) const {
    Line x;
    const float* left = of_left.data + left_offset + line * of_left.k;
    const float* right = of_right.data + right_offset + line * of_right.k;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(m + rows * 64 + i * 8, end_m - 1);
      x.left[i] = left[row / X::left_group * of_left.along];
    }
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      const int column = min(n + i / 2 * 8 + i % 2, end_n - 1);
      x.right[i] = right[column / X::right_group * of_right.along];
    }
    return x;
  }

  template <int count>
  static __device__ void add(const float (&part)[count], float (&sums)[count], const Line& x) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      sums[i] += part[i] * (x.left[i / 2 % 2] * x.right[by_column ? i / 4 * 2 + i % 2 : 0]);
    }
  }
};

}  // namespace cutlass_py::sm90
