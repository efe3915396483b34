// How finished numbers leave: through a buffer in shared memory, by the copy engine, while the next ones are finished.
//
// D may lie with the left operand's rows as its own, or, where the operands have changed places, as its columns: which
// of the two is told at run time.
#pragma once

#include "kernels/sm90/design.cuh"
#include "kernels/sm90/epilogue.cuh"

namespace cutlass_py::sm90 {

// The part of D that a warpgroup stores at once: 64 rows of the left operand by some columns of the right one.
//
// It lies in panels, as boxes are copied: rows of 128, 64 or 32 bytes, in which the copy engine swaps 16 bytes with
// others by the row. Turned, a row is a column of the right operand and has 128 bytes of the left one's rows.
template <class X>
struct Store {
  static constexpr int size = X::d_size, columns = X::d_columns, panel = X::d_panel;
  static constexpr int row_bytes = panel * size, panel_bytes = 64 * row_bytes;
  static constexpr int turned_rows = kLine / size, turned_bytes = columns * kLine;  // of a panel
  static constexpr bool by_matrix = size == 2;

  const TensorMap& map;
  const bool turned;
  const int warpgroup;
  const bool leads;
  Address own;  // where this thread's first number goes, or of matrices its row
  Address buffer = 0;
  int next = 0;

  __device__ Store(const TensorMap& map, bool turned, int warpgroup)
      : map(map), turned(turned), warpgroup(warpgroup), leads(threadIdx.x % 128 == 0) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
    if constexpr (by_matrix) {  // the four matrices: rows, rows + 8, and the same of columns + 8
      const int row = warp * 16 + lane / 8 % 2 * 8, column = lane / 16 * 8, in_matrix = lane % 8;
      own = turned ? swizzled<kLine>(column + in_matrix, row * size)
                   : swizzled<row_bytes>(row + in_matrix, column * size);
    } else {
      const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
      own = turned ? row / turned_rows * turned_bytes + swizzled<kLine>(column, row % turned_rows * size)
                   : swizzled<row_bytes>(row, column * size);
    }
  }

  // The next buffer, once it has been read.
  __device__ void begin(const SharedMemory<X>& shared) {
    if (leads) wait_for_reads<X::buffers - 1>();
    named_barrier(1 + warpgroup);
    buffer = shared.buffer(warpgroup, next);
    next = (next + 1) % X::buffers;
  }

  // A unit of so many columns from the part's first.
  __device__ void put(const float (&x)[kUnit], int column) const {
    // What a swizzle swaps, it swaps within a row, whose offset has none of these bits.
    const Address at = turned ? buffer + column * kLine : buffer + column / panel * panel_bytes;
    const Address in_row = column % panel * size;
    if constexpr (by_matrix) {
      const uint32_t words[4] = {packed<typename X::D>(x[0], x[1]), packed<typename X::D>(x[2], x[3]),
                                 packed<typename X::D>(x[4], x[5]), packed<typename X::D>(x[6], x[7])};
      if (turned) {
        store_matrices<true>(at + own, words);
      } else {
        store_matrices<false>(at + (own ^ in_row), words);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; i += 2) {
        const int row = row_in_unit(i), right = column_in_unit(i);
        const uint32_t low = __float_as_uint(x[i]), high = __float_as_uint(x[i + 1]);
        if (turned) {
          const Address to = at + right * kLine + (own ^ row * size);
          store_shared(to, low);
          store_shared((to + kLine) ^ 16, high);  // the next row is swapped the other way
        } else {
          store_shared(at + row * row_bytes + (own ^ (in_row + right * size)), low, high);
        }
      }
    }
  }

  // What was put, at these rows of the left operand and columns of the right one. The map clips what is outside.
  __device__ void send(int m, int n, int batch) const {
    publish_to_copies();
    named_barrier(1 + warpgroup);
    if (!leads) return;
    if (turned) {
#pragma unroll
      for (int i = 0; i < 64 / turned_rows; ++i) {
        store(map, buffer + i * turned_bytes, m + i * turned_rows, n, batch);
      }
    } else {
#pragma unroll
      for (int i = 0; i < columns / panel; ++i) store(map, buffer + i * panel_bytes, n + i * panel, m, batch);
    }
    commit_stores();
  }

  __device__ void finish() const {
    if (leads) wait_for_stores();
  }

 private:
  template <int bytes>
  static __device__ Address swizzled(int row, int byte) {
    static_assert(bytes == 128 || bytes == 64 || bytes == 32);
    constexpr int rows_to_swap = 128 / bytes, chunks = bytes / 16;
    return Address(row * bytes + (byte ^ (row / rows_to_swap % chunks * 16)));
  }
};

}  // namespace cutlass_py::sm90
