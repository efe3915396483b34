// Factors of blocks: one for every line of k and so many rows of the left operand, and columns of the right one.
//
// They are a part of a stage, beside the line itself: three warps copy what a tile has of a line as soon as a stage is
// free, so that factors are as far ahead as what they belong to.
#pragma once

#include "kernels/sm90/load.cuh"
#include "kernels/sm90/vectors.cuh"

namespace cutlass_py::sm90 {

// What one thread copies, of the warps beside the one that loads.
template <class X>
struct FactorCopies {
  static constexpr int count = X::right_factors + X::left_factors;  // in this order
  static constexpr int most = (count + kCopying - 1) / kCopying;

  const Parameters& p;
  const SharedMemory<X>& shared;
  const int thread = int(threadIdx.x) - (128 - kCopying);
  const float* from[most];  // each of the next line

  __device__ int number(int i) const { return i * kCopying + thread; }
  __device__ static bool is_right(int number) { return number < X::right_factors; }

  __device__ void begin(const TileCorner& at, int step, int) {
    const auto [m, n, batch] = at;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const bool right = is_right(number(i));
      const BlockFactors& of = right ? p.right_factors : p.left_factors;
      const int row = min(m + (number(i) - X::right_factors) * (X::M / X::left_factors), p.end_m - 1) / X::left_group;
      const int column = min(n + number(i), p.end_n - 1) / X::right_group;
      from[i] = of.data + batch * of.batch + (right ? column : row) * of.along + step * of.k;
    }
  }
  __device__ void tell(const TileCorner&, int) const {}  // the warp that loads has done so
  __device__ void stage(int stage, int) {
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const bool right = is_right(number(i));
      const int place = right && X::by_column ? Vectors<X>::Staged::place(number(i)) : number(i);
      if (number(i) < count) copy(shared.factors_of(stage) + place * 4, from[i]);
      from[i] += (right ? p.right_factors : p.left_factors).k;
    }
    arrive_when_copied(shared.full(stage));
  }
};

template <class X>
__device__ void copy_factors(const Parameters& p, const SharedMemory<X>& shared, const Place<X>& place) {
  FactorCopies<X> copies{p, shared};
  fill_stages(p, shared, place, copies);
}

// What a thread's numbers of a line are multiplied by, of 64 rows; nothing without factors.
template <class X>
struct Factors {
  struct Line {
    float left[2], right;
    Address columns;  // of which each has its own: those are read where they are applied
  };

  const SharedMemory<X>& shared;
  const int first_row;  // of the warpgroup

  __device__ Line read(int rows, int stage) const {
    Line x{};
    if constexpr (X::has_factors) {
      const Address right = shared.factors_of(stage), left = right + X::right_factors * 4;
      if constexpr (X::left_factors == X::M) {
        const int row = first_row + rows * 64 + own_row();
        x.left[0] = number(left + row * 4), x.left[1] = number(left + (row + 8) * 4);
      } else {
        x.left[0] = x.left[1] = number(left + first_row / X::rows * 4);
      }
      if constexpr (X::by_column) {
        x.columns = right + own_column() * 8;
      } else {
        x.right = number(right);
      }
    }
    return x;
  }

  template <int count>
  static __device__ void add(const float (&part)[count], float (&sums)[count], const Line& x) {
    if constexpr (X::by_column) {
#pragma unroll
      for (int i = 0; i < count; i += 8) {
        float columns[4];
        load_shared(x.columns + i * 8, columns);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i + j] += part[i + j] * (columns[j / 4 * 2 + j % 2] * x.left[j / 2 % 2]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) sums[i] += part[i] * (X::has_factors ? x.left[i / 2 % 2] * x.right : 1);
    }
  }

 private:
  static __device__ float number(Address at) { return __uint_as_float(load_shared<uint32_t>(at)); }
};

}  // namespace cutlass_py::sm90
