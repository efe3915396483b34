// What a warp reads of the matrix at once, and multiplies: granules of a line, as large as its alignment allows.
//
// `rows` vectors are multiplied; they lie in shared memory as numbers, in the order in which lanes read them.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/common/finish.cuh"
#include "kernels/common/numbers.cuh"
#include "kernels/gemv/shape.h"

namespace cutlass_py::gemv {

// What is computed in, and what holds whole elements.
template <class Dtype>
using Number = std::conditional_t<std::is_same_v<Dtype, numbers::F64>, double, float>;
template <class Dtype>
using Word = std::conditional_t<sizeof(typename Dtype::Type) == 8, uint64_t, uint32_t>;
template <class Dtype>
constexpr int kPerWord = int(sizeof(Word<Dtype>) / sizeof(typename Dtype::Type));

// The numbers of a word, the first one in its low bits.
template <class Dtype>
__device__ void values_of(Word<Dtype> word, Number<Dtype> (&x)[kPerWord<Dtype>]) {
  if constexpr (std::is_same_v<Dtype, numbers::F64>) {
    x[0] = __longlong_as_double(int64_t(word));
  } else if constexpr (std::is_same_v<Dtype, numbers::Bf16>) {
    x[0] = __uint_as_float(word << 16), x[1] = __uint_as_float(word & 0xffff0000);
  } else if constexpr (sizeof(typename Dtype::Type) == 1) {
    constexpr bool e4m3 = std::is_same_v<Dtype, numbers::E4m3>;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto pair = __nv_fp8x2_storage_t(word >> i * 16);
      const __half2 both(__half2_raw(__nv_cvt_fp8x2_to_halfraw2(pair, e4m3 ? __NV_E4M3 : __NV_E5M2)));
      x[2 * i] = __low2float(both), x[2 * i + 1] = __high2float(both);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerWord<Dtype>; ++i) {
      x[i] = Dtype::value(typename Dtype::Type(word >> i * 8 * (sizeof(typename Dtype::Type) % 4)));
    }
  }
}

// A granule: words, or an element that is less than one.
template <class Dtype, int bytes>
struct Granule {
  static constexpr int size = int(sizeof(typename Dtype::Type)), elements = bytes / size;
  static constexpr int word_bytes = int(sizeof(Word<Dtype>)), words = bytes < word_bytes ? 1 : bytes / word_bytes;
  static constexpr int per_word = kPerWord<Dtype> < elements ? kPerWord<Dtype> : elements;
  Word<Dtype> word[words];

  __device__ void clear() {
#pragma unroll
    for (auto& x : word) x = 0;
  }
  __device__ void load(const char* from) {
    if constexpr (bytes == 16) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(from));
      if constexpr (word_bytes == 8) {
        word[0] = uint64_t(x.y) << 32 | x.x, word[1] = uint64_t(x.w) << 32 | x.z;
      } else {
        word[0] = x.x, word[1] = x.y, word[2] = x.z, word[3] = x.w;
      }
    } else if constexpr (bytes == 4) {
      word[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
    } else {
      word[0] = __ldg(reinterpret_cast<const typename Dtype::Type*>(from));
    }
  }
  // The i-th word's.
  __device__ void get(int i, Number<Dtype> (&x)[per_word]) const {
    Number<Dtype> all[kPerWord<Dtype>];
    values_of<Dtype>(word[i], all);
#pragma unroll
    for (int j = 0; j < per_word; ++j) x[j] = all[j];
  }
};

// Sums of `count` numbers over the lanes that are `least` apart and more: each time a lane gives away half of what it
// has left. use(i, sum) of the i-th one, by one lane.
template <int least, int distance = 16, class T, int count, class Use>
__device__ void add_lanes(const T (&x)[count], int lane, Use use, int first = 0, bool leads = true) {
  if constexpr (distance < least) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (leads) use(first + i, x[i]);
    }
  } else {
    constexpr int half = count > 1 ? count / 2 : 1;
    const bool upper = lane & distance;
    T sum[half];
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const T kept = upper ? x[count - half + i] : x[i], given = upper ? x[i] : x[count - half + i];
      sum[i] = kept + __shfl_xor_sync(~0u, given, distance);
    }
    if (upper && count > 1) first += half;
    add_lanes<least, distance / 2>(sum, lane, use, first, leads && !(upper && count == 1));
  }
}

// Columns of the result that lie along k: a warp has `columns` lines, and reads them side by side.
template <class Dtype, int rows_, int bytes>
struct AlongK {
  using Piece = Granule<Dtype, bytes>;
  static constexpr Matrix matrix{Piece::size, true, bytes};
  static constexpr int rows = rows_, columns = matrix.columns(), steps = matrix.steps(rows), span = matrix.span(rows);
  static constexpr int most = 16 / int(sizeof(Number<Dtype>));  // that a lane reads of shared memory at once
  static constexpr int vector = Piece::elements < most ? Piece::elements : most;

  using T = Number<Dtype>;
  using Sums = T[columns * rows];

  Piece piece[columns][steps];

  // Where in shared memory the k-th number of a row lies, of `length` ones: vectors of 32 lanes side by side.
  static __device__ int place(int k, int row, int length) {
    constexpr int lane = Piece::elements, warp = 32 * lane;
    return row * length + k / warp * warp + k % lane / vector * (32 * vector) + k % warp / lane * vector + k % vector;
  }

  __device__ void load(const char* matrix, int64_t line, uint32_t first, uint32_t end_columns, uint32_t k, uint32_t end,
                       int lane) {
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      const char* from = matrix + int64_t(first + i) * line;
#pragma unroll
      for (int j = 0; j < steps; ++j) {
        const uint32_t at = k + (j * 32 + lane) * Piece::elements;
        piece[i][j].clear();
        if (first + i < end_columns && at < end) piece[i][j].load(from + int64_t(at) * Piece::size);
      }
    }
  }

  // `k` counts from the first number in shared memory.
  __device__ void multiply(const T* x, int length, int k, int lane, Sums& sums) const {
#pragma unroll
    for (int j = 0; j < steps; ++j) {
#pragma unroll
      for (int part = 0; part < Piece::elements / vector; ++part) {
        const T* from = x + k + (j * Piece::elements / vector + part) * (32 * vector) + lane * vector;
        T factor[rows][vector];
#pragma unroll
        for (int row = 0; row < rows; ++row) {
          if constexpr (vector == 4) {
            const float4 four = *reinterpret_cast<const float4*>(from + row * length);
            factor[row][0] = four.x, factor[row][1] = four.y, factor[row][2] = four.z, factor[row][3] = four.w;
          } else {
#pragma unroll
            for (int i = 0; i < vector; ++i) factor[row][i] = from[row * length + i];
          }
        }
#pragma unroll
        for (int column = 0; column < columns; ++column) {
#pragma unroll
          for (int first = 0; first < vector; first += Piece::per_word) {
            T y[Piece::per_word];
            piece[column][j].get((part * vector + first) / Piece::per_word, y);
#pragma unroll
            for (int row = 0; row < rows; ++row) {
#pragma unroll
              for (int i = 0; i < Piece::per_word; ++i) {
                T& sum = sums[column * rows + row];
                sum = fused(y[i], factor[row][first + i], sum);
              }
            }
          }
        }
      }
    }
  }

  // use(column, row, sum), each by one lane.
  template <class Use>
  static __device__ void finish(const Sums& sums, int lane, Use use) {
    add_lanes<1>(sums, lane, [&](int i, T sum) { use(i / rows, i % rows, sum); });
  }
};

// Columns of the result that lie side by side: of 64 bytes of a line, by as many lanes as these have granules; the
// others read the lines behind it.
template <class Dtype, int rows_, int bytes>
struct AlongColumns {
  using Piece = Granule<Dtype, bytes>;
  static constexpr Matrix matrix{Piece::size, false, bytes};
  static constexpr int rows = rows_, columns = matrix.columns(), steps = matrix.steps(rows), span = matrix.span(rows);
  static constexpr int lanes = matrix.lanes(), lines = 32 / lanes, each = matrix.across();

  using T = Number<Dtype>;
  using Sums = T[each * Piece::elements * rows];

  Piece piece[steps][each];

  static __device__ int place(int k, int row, int) { return k * rows + row; }

  __device__ void load(const char* matrix, int64_t line, uint32_t first, uint32_t end_columns, uint32_t k, uint32_t end,
                       int lane) {
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const uint32_t at = k + i * lines + lane / lanes;
#pragma unroll
      for (int j = 0; j < each; ++j) {
        const uint32_t column = first + (j * lanes + lane % lanes) * Piece::elements;
        piece[i][j].clear();
        if (column < end_columns && at < end) {
          piece[i][j].load(matrix + int64_t(at) * line + int64_t(column) * Piece::size);
        }
      }
    }
  }

  __device__ void multiply(const T* x, int, int k, int lane, Sums& sums) const {
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const T* from = x + (k + i * lines + lane / lanes) * rows;
      T factor[rows];
#pragma unroll
      for (int row = 0; row < rows; ++row) factor[row] = from[row];
#pragma unroll
      for (int j = 0; j < each; ++j) {
#pragma unroll
        for (int first = 0; first < Piece::elements; first += Piece::per_word) {
          T y[Piece::per_word];
          piece[i][j].get(first / Piece::per_word, y);
#pragma unroll
          for (int column = 0; column < Piece::per_word; ++column) {
#pragma unroll
            for (int row = 0; row < rows; ++row) {
              T& sum = sums[(j * Piece::elements + first + column) * rows + row];
              sum = fused(y[column], factor[row], sum);
            }
          }
        }
      }
    }
  }

  template <class Use>
  static __device__ void finish(const Sums& sums, int lane, Use use) {
    add_lanes<lanes>(sums, lane, [&](int i, T sum) {
      const int granule = i / rows / Piece::elements, element = i / rows % Piece::elements;
      use((granule * lanes + lane % lanes) * Piece::elements + element, i % rows, sum);
    });
  }
};

}  // namespace cutlass_py::gemv
