// The vectors of an epilogue, on their way to the parts of a tile.
//
// They are asked for before a tile is multiplied, where it is not in slices, and memory answers meanwhile. Then a
// warpgroup leaves them in shared memory: lines of numbers, one for every column of the tile and one for every row of
// the warpgroup.
#pragma once

#include "kernels/sm90/parameters.cuh"

namespace cutlass_py::sm90 {

// Where a part of D lies and whose it is; or a tile.
struct PartPlace {
  int m, n, batch;
};

// Lines as a thread reads them for a part: the four columns that it has in a unit lie together.
template <int bytes>
struct StagedLines {
  Address columns, rows;  // this thread's first ones, of the first line

  static __device__ int place(int column) {
    return column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
  }
  // Of a unit, by its first column in the part.
  __device__ void get_columns(int line, int column, float (&x)[4]) const {
    load_shared(columns + line * bytes + column * 4, x);
  }
  __device__ void get_rows(int line, float (&x)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = __uint_as_float(load_shared<uint32_t>(rows + line * bytes + i * 32));
  }
};

// Of a warpgroup.
template <class X>
struct Vectors {
  using Given = ParametersWith<X::Epilogue::operands>;
  using Lines = typename X::Epilogue::Lines;
  using Staged = StagedLines<X::vector_bytes>;
  static constexpr int count = X::Epilogue::vectors, room = count ? count : 1;
  static constexpr int shares = X::N > 128 ? 2 : 1;  // of a vector, 128 numbers each: one by every thread
  static_assert(X::N <= 256 && X::rows <= 128);

  const Given& p;
  const Address lines;
  const int warpgroup;
  Ends<X::grouped> ends;
  uint32_t bits[room][shares];

  __device__ Vectors(const Given& p, const SharedMemory<X>& shared, int warpgroup)
      : p(p), lines(shared.vectors_of(warpgroup)), warpgroup(warpgroup), ends(p) {}

  // Of a tile that is to come.
  __device__ void request(const PartPlace& tile) {
    const Corner corner{tile.m, tile.n, tile.batch, ends.m(), ends.n()};
#pragma unroll
    for (auto& vector : bits) {  // also where there are none: what the tile before has left would be held
#pragma unroll
      for (uint32_t& x : vector) x = 0;
    }
    X::Epilogue::each_vector(p.epilogue, p.operand, [&](int i, int, const Vector& x, auto dtype) {
      x.template read<X, decltype(dtype)>(corner, bits[i]);
    });
  }

  // Of the tile whose parts begin now. All have read those of the tile before, or its last part was not sent.
  __device__ void stage() const {
    float columns[Lines::room][shares], rows[Lines::room];
#pragma unroll
    for (int line = 0; line < Lines::count; ++line) {
#pragma unroll
      for (float& x : columns[line]) x = Lines::nothing(line);
      rows[line] = Lines::nothing(line);
    }
    X::Epilogue::each_vector(p.epilogue, p.operand, [&](int i, int line, const Vector& x, auto dtype) {
      using Dtype = decltype(dtype);
      const auto value = [&](int share) { return Dtype::value(typename Dtype::Type(bits[i][share])); };
      if (!x.n) return Lines::join(line, rows[line], value(0));
#pragma unroll
      for (int share = 0; share < shares; ++share) Lines::join(line, columns[line][share], value(share));
    });
    const int thread = thread_anew() % 128;
#pragma unroll
    for (int line = 0; line < Lines::count; ++line) {
      const Address at = lines + line * X::vector_bytes;
#pragma unroll
      for (int share = 0; share < shares; ++share) {
        const int column = thread + share * 128;
        if (column < X::N) store_shared(at + Staged::place(column) * 4, __float_as_uint(columns[line][share]));
      }
      if (thread < X::rows) store_shared(at + (X::N + thread) * 4, __float_as_uint(rows[line]));
    }
    if constexpr (Lines::count > 0) named_barrier(1 + warpgroup);
  }
  __device__ Staged of_part(const PartPlace& tile, const PartPlace& part) const {
    return {lines + (part.n - tile.n + own_column() * 2) * 4, lines + (X::N + part.m - tile.m + own_row()) * 4};
  }
};

// Of the values, by those of the gates in the same part.
template <class X>
__device__ typename Vectors<X>::Staged values_of(const typename Vectors<X>::Staged& gates) {
  return {gates.columns + (X::pairs == Pairs::right ? X::d_columns * 4 : 0),
          gates.rows + (X::pairs == Pairs::left ? X::d_rows * 4 : 0)};
}

}  // namespace cutlass_py::sm90
