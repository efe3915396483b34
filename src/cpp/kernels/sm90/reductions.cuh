// Reductions over one axis of D: of a user's epilogue, or a bias gradient.
//
// Every part of a tile leaves what it has joined in the workspace: a value for each of its rows, or of its columns. A
// kernel that follows joins those of a line in their order: the same bits on every run.
#pragma once

#include "kernels/sm90/parameters.cuh"
#include "kernels/sm90/part.cuh"

namespace cutlass_py {
namespace user {

// What a reduction starts from, and how it joins two values. NaN goes through.
struct Sum {
  static __device__ float identity() { return 0; }
  static __device__ float join(float x, float y) { return x + y; }
};
struct Max {
  static __device__ float identity() { return -__int_as_float(0x7f800000); }
  static __device__ float join(float x, float y) { return x > y || x != x ? x : y; }
};
struct Min {
  static __device__ float identity() { return __int_as_float(0x7f800000); }
  static __device__ float join(float x, float y) { return x < y || x != x ? x : y; }
};

}  // namespace user

namespace sm90 {

// A block that joins parts: lines side by side, so many a warp that whole sectors are read, and shares of each line.
constexpr int kJoiningThreads = 128, kLinesOfWarp = 8, kShares = 32 / kLinesOfWarp;
constexpr int kLinesAtOnce = kJoiningThreads / kShares;

// Whether it leaves a value for each row of the left operand, or else for each column of the right one.
__host__ __device__ inline bool by_left_row(Reduces reduces, bool turned) {
  return (reduces == Reduces::rows) != turned;
}

// ------------------------------------------------------------------------------------------------ within a part

// What a warpgroup joins of a part, for the i-th reduction. Columns go through shared memory, as each of the four warps
// has other rows.
template <class X, class R, int i>
struct Total {
  using Join = typename R::Join;
  float rows[2] = {Join::identity(), Join::identity()};

  __device__ void take(const Parts<X>& parts, const float (*results)[kUnit], const Corner& at, int unit) {
    const float (&x)[kUnit] = results[R::result];
    if (by_left_row(R::reduces, parts.p.turned)) {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        float& row = rows[row_in_unit(j) / 8];
        if (at.n + column_in_unit(j) < at.end_n) row = Join::join(row, x[j]);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      if (row_in_unit(j)) continue;
      float column = at.m < at.end_m ? x[j] : Join::identity();
      if (at.m + 8 < at.end_m) column = Join::join(column, x[j + 2]);
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) column = Join::join(column, exchanged(column, lanes));
      if (lane() < 4) {
        store_shared(place(parts, warp(), unit + lane() * 2 + column_in_unit(j)), __float_as_uint(column));
      }
    }
  }

  // Behind a barrier of the warpgroup.
  __device__ void leave(const Parts<X>& parts, const PartPlace& here) {
    const int end_m = parts.p.end_m, end_n = parts.p.end_n;
    if (here.m >= end_m || here.n >= end_n) return;
    const bool by_row = by_left_row(R::reduces, parts.p.turned);
    const Operand& to = parts.p.operand[R::operand];
    auto* lines =
        static_cast<float*>(to.data) + (here.batch * to.batch + (by_row ? here.n / X::columns : here.m / 64)) * to.row;
    if (by_row) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2) rows[j] = Join::join(rows[j], exchanged(rows[j], lanes));
        const int row = here.m + warp() * 16 + j * 8 + lane() / 4;
        if (lane() % 4 == 0 && row < end_m) lines[row] = rows[j];
      }
      return;
    }
    const int column = int(threadIdx.x) % 128;
    if (column >= X::columns || here.n + column >= end_n) return;
    float x = __uint_as_float(load_shared<uint32_t>(place(parts, 0, column)));
#pragma unroll
    for (int j = 1; j < 4; ++j) x = Join::join(x, __uint_as_float(load_shared<uint32_t>(place(parts, j, column))));
    lines[here.n + column] = x;
  }

 private:
  static __device__ int lane() { return int(threadIdx.x) % 32; }
  static __device__ int warp() { return int(threadIdx.x) / 32 % 4; }
  static __device__ Address place(const Parts<X>& parts, int warp, int column) {
    const Address own = parts.shared.totals + parts.warpgroup * X::totals_bytes;
    return own + ((i * 4 + warp) * X::columns + column) * 4;
  }
};

template <class X, class All, int i = 0>
struct Totals;
template <class X, int i>
struct Totals<X, Reductions<>, i> {
  __device__ void take(const Parts<X>&, const float (*)[kUnit], const Corner&, int) {}
  __device__ void leave(const Parts<X>&, const PartPlace&) {}
};
template <class X, class First, class... Rest, int i>
struct Totals<X, Reductions<First, Rest...>, i> {
  Total<X, First, i> first;
  Totals<X, Reductions<Rest...>, i + 1> rest;

  __device__ void take(const Parts<X>& parts, const float (*results)[kUnit], const Corner& at, int unit) {
    first.take(parts, results, at, unit), rest.take(parts, results, at, unit);
  }
  __device__ void leave(const Parts<X>& parts, const PartPlace& here) {
    first.leave(parts, here), rest.leave(parts, here);
    if constexpr (i == 0) named_barrier(1 + parts.warpgroup);  // all have read what the next part writes over
  }
};

// ------------------------------------------------------------------------------------------------ of all parts

// Where the parts of a reduction lie, and where its values go; strides in elements.
struct Joined {
  const float* parts;
  float* to;
  int32_t lines, count, products;
  int64_t step, batch;
};
template <int count>
struct AllJoined {
  Joined each[count ? count : 1];
};

// Every thread has a share of a line's parts, in their order, and shares are joined in theirs.
template <class R>
__device__ void join_parts(const Joined& x) {
  const int lane = int(threadIdx.x) % 32, share = lane / kLinesOfWarp;
  const int line = int(blockIdx.x) * kLinesAtOnce + int(threadIdx.x) / 32 * kLinesOfWarp + lane % kLinesOfWarp;
  const int begin = int(int64_t(x.count) * share / kShares), end = int(int64_t(x.count) * (share + 1) / kShares);
  for (int batch = int(blockIdx.z); batch < x.products; batch += int(gridDim.z)) {
    const float* parts = x.parts + int64_t(batch) * x.count * x.lines + min(line, x.lines - 1);
    float value = R::Join::identity();
#pragma unroll 8  // reads do not wait for each other
    for (int i = begin; i < end; ++i) value = R::Join::join(value, parts[int64_t(i) * x.lines]);
#pragma unroll
    for (int lanes = kLinesOfWarp; lanes < 32; lanes *= 2) {
      value = R::Join::join(value, __shfl_xor_sync(~0u, value, lanes));
    }
    if (share == 0 && line < x.lines) x.to[line * x.step + batch * x.batch] = value;
  }
}

// Block (i, j, k): some lines of the j-th reduction, of the k-th product of a batch and of some of those behind it.
template <class... R>
__device__ void join_all(Reductions<R...>, const AllJoined<sizeof...(R)>& p) {
  wait_for_predecessor();
  int i = 0;
  ((int(blockIdx.y) == i ? join_parts<R>(p.each[i]) : void(), ++i), ...);
}

template <class All>
__global__ void __launch_bounds__(kJoiningThreads) joining_kernel(const __grid_constant__ AllJoined<All::count> p) {
  join_all(All(), p);
}

}  // namespace sm90
}  // namespace cutlass_py
