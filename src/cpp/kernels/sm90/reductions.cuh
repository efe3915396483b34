// Reductions of a user's epilogue over one axis of D.
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

constexpr int kMostReductions = 8;
constexpr int kLinesAtOnce = 128;  // threads of a block that joins parts

// One of an epilogue: how it joins, which of the epilogue's results it takes, and where its operand is. `along_rows`:
// D's rows have a value each, not its columns.
template <class Join_, int result_, int operand_, bool along_rows_>
struct Reduction {
  using Join = Join_;
  static constexpr int result = result_, operand = operand_;
  static constexpr bool along_rows = along_rows_;
};
// A line for each row of the left operand, or for each column of the right one; what parts leave of it lies `lines`
// apart.
__host__ __device__ inline bool by_left_row(bool along_rows, bool turned) { return along_rows != turned; }
__host__ __device__ inline int32_t lines_of(bool by_row, int64_t end_m, int64_t end_n) {
  return int32_t(by_row ? end_m : end_n);
}
__host__ __device__ inline int32_t parts_of(bool by_row, int64_t end_m, int64_t end_n, int columns) {
  return int32_t(by_row ? (end_n + columns - 1) / columns : (end_m + 63) / 64);
}

// ------------------------------------------------------------------------------------------------ within a part

// What a warpgroup joins of a part. Columns go through shared memory, as each of the four warps has other rows.
template <class X, class R>
struct Total {
  using Join = typename R::Join;
  const Operand& to;
  const bool by_row;
  const Address columns;
  const int lane, warp;
  float rows[2];

  __device__ Total(const Operand* operands, bool turned, Address columns)
      : to(operands[R::operand]),
        by_row(by_left_row(R::along_rows, turned)),
        columns(columns),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32 % 4),
        rows{Join::identity(), Join::identity()} {}

  __device__ void take(const float (*results)[kUnit], const Corner& at, int unit) {
    const float (&x)[kUnit] = results[R::result];
    if (by_row) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        float& row = rows[row_in_unit(i) / 8];
        if (at.n + column_in_unit(i) < at.end_n) row = Join::join(row, x[i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if (row_in_unit(i)) continue;
      float column = at.m < at.end_m ? x[i] : Join::identity();
      if (at.m + 8 < at.end_m) column = Join::join(column, x[i + 2]);
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) column = Join::join(column, exchanged(column, lanes));
      if (lane < 4) store_shared(place(warp, unit + lane * 2 + column_in_unit(i)), __float_as_uint(column));
    }
  }

  // Behind a barrier of the warpgroup, and in front of the next.
  __device__ void leave(const PartPlace& here, int end_m, int end_n) {
    if (here.m >= end_m || here.n >= end_n) return;
    auto* lines =
        static_cast<float*>(to.data) + (here.batch * to.batch + (by_row ? here.n / X::columns : here.m / 64)) * to.row;
    if (by_row) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2) rows[i] = Join::join(rows[i], exchanged(rows[i], lanes));
        const int row = here.m + warp * 16 + i * 8 + lane / 4;
        if (lane % 4 == 0 && row < end_m) lines[row] = rows[i];
      }
      return;
    }
    const int column = warp * 32 + lane;
    if (column >= X::columns || here.n + column >= end_n) return;
    float x = __uint_as_float(load_shared<uint32_t>(place(0, column)));
#pragma unroll
    for (int i = 1; i < 4; ++i) x = Join::join(x, __uint_as_float(load_shared<uint32_t>(place(i, column))));
    lines[here.n + column] = x;
  }

 private:
  __device__ Address place(int warp, int column) const { return columns + (warp * X::columns + column) * 4; }
};

template <class X, class All>
struct Totals;
template <class X>
struct Totals<X, Reductions<>> {
  __device__ Totals(const Operand*, bool, Address) {}
  __device__ void take(const float (*)[kUnit], const Corner&, int) {}
  __device__ void leave(const PartPlace&, int, int) {}
};
template <class X, class First, class... Rest>
struct Totals<X, Reductions<First, Rest...>> {
  Total<X, First> first;
  Totals<X, Reductions<Rest...>> rest;

  __device__ Totals(const Operand* operands, bool turned, Address columns)
      : first(operands, turned, columns), rest(operands, turned, columns + 4 * X::columns * 4) {}
  __device__ void take(const float (*results)[kUnit], const Corner& at, int unit) {
    first.take(results, at, unit), rest.take(results, at, unit);
  }
  __device__ void leave(const PartPlace& here, int end_m, int end_n) {
    first.leave(here, end_m, end_n), rest.leave(here, end_m, end_n);
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

template <class R>
__device__ void join_parts(const Joined& x, int line) {
  for (int batch = int(blockIdx.z); line < x.lines && batch < x.products; batch += int(gridDim.z)) {
    const float* part = x.parts + int64_t(batch) * x.count * x.lines + line;
    float value = *part;
    for (int i = 1; i < x.count; ++i) value = R::Join::join(value, *(part += x.lines));
    x.to[line * x.step + batch * x.batch] = value;
  }
}

// Block (i, j, k): some lines of the j-th reduction, of the k-th product of a batch and of some of those behind it.
template <class... R>
__device__ void join_all(Reductions<R...>, const AllJoined<sizeof...(R)>& p) {
  wait_for_predecessor();
  const int line = int(blockIdx.x * kLinesAtOnce + threadIdx.x);
  int i = 0;
  ((int(blockIdx.y) == i ? join_parts<R>(p.each[i], line) : void(), ++i), ...);
}

template <class All>
__global__ void __launch_bounds__(kLinesAtOnce) joining_kernel(const __grid_constant__ AllJoined<All::count> p) {
  join_all(All(), p);
}

}  // namespace sm90
}  // namespace cutlass_py
