// The kernels of the composed epilogue: compose_kernel, column_sums_kernel where there is nothing else to do, and
// finish_kernel for the sums of bias_grad.
//
// Bound by memory. Dtypes, strides and the activation are switched at run time, once for the four elements of a row
// that a thread holds, so one kernel serves every combination. The elements are neighbours where every operand can be
// read by vectors of four; otherwise they lie a warp's width apart, and any stride will do.
#pragma once

#include "abi/activation.h"
#include "kernels/common/activation.cuh"
#include "kernels/elementwise/conversion.cuh"

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

// An operand; strides in bytes. Absent where data is null.
struct Array {
  char* data;
  int64_t row, col, batch;
  Dtype dtype;
  int size;
};

struct Factor {
  double value;
  const void* device;  // or null
};

enum class Sums { none, of_columns, of_rows };

struct Compose {
  Array acc, c, bias, scale_a, scale_b, argument, aux, d;  // the activation is taken at `argument`, without it at z
  Factor alpha, beta, scale_out;
  Dtype factor_dtype;
  int parts;
  int64_t part_stride;
  Activation activation;
  bool fast;  // its approximations round less than the results do
  double parameters[2];
  // One block: `passes` times kThreads >> lanes_log2 rows, by kElements << lanes_log2 columns.
  int64_t batch;
  uint32_t rows, cols, tiles_per_row;
  int lanes_log2, passes;
  Sums sums;
  void* partial;
};

// What a thread works on: kElements elements from (row, col) on, `step` columns apart.
struct Place {
  int64_t batch;
  uint32_t row, col, step;
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

// ------------------------------------------------------------------------------------------------ memory

__device__ inline char* address(const Array& x, const Place& at) {
  return x.data + at.batch * x.batch + int64_t(at.row) * x.row + int64_t(at.col) * x.col;
}

template <bool kVector>
__device__ bool packed(const Array& x) {
  return kVector && x.col != 0;  // a stride of 0 repeats one element
}

// Only loads: what they bring is looked at in `numbers`, after every load of an element is on its way.
template <class T, bool kVector>
__device__ void load(const Array& x, const Place& at, int count, Word<T> (&words)[kElements]) {
  const char* from = address(x, at);
  if constexpr (kVector) {
    if (packed<kVector>(x)) {
      if (x.size == 4) {
        *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(from);
      } else if (x.size == 2) {
        *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
      } else {
        words[0] = *reinterpret_cast<const uint32_t*>(from);
      }
      return;
    }
  }
  const int64_t step = at.step * x.col;
  const auto each = [&](auto element) {
    using Element = decltype(element);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i < count) words[i] = *reinterpret_cast<const Element*>(from + i * step);
    }
  };
  if (x.size == 1) return each(uint8_t());
  if (x.size == 2) return each(uint16_t());
  if (x.size == 4) return each(uint32_t());
  if constexpr (sizeof(T) == 8) each(uint64_t());
}

template <class T, bool kVector>
__device__ void numbers(const Array& x, const Word<T> (&words)[kElements], T (&value)[kElements]) {
  if constexpr (kVector) {
    if (packed<kVector>(x)) return decode<true, T>(x.dtype, words, value);
  }
  decode<false, T>(x.dtype, words, value);
}

template <class T, bool kVector>
__device__ void store(const Array& x, const Place& at, int count, const T (&value)[kElements]) {
  char* to = address(x, at);
  encode(x.dtype, value, [&](const auto& bits) {
    using Element = std::decay_t<decltype(bits[0])>;
    if constexpr (kVector && sizeof(Element) <= 4) {
      struct alignas(kElements * sizeof(Element)) Vector {
        Element element[kElements];
      } vector;
#pragma unroll
      for (int i = 0; i < kElements; ++i) vector.element[i] = bits[i];
      *reinterpret_cast<Vector*>(to) = vector;
    } else {
      const int64_t step = at.step * x.col;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (i < count) *reinterpret_cast<Element*>(to + i * step) = bits[i];
      }
    }
  });
}

template <class T>
__device__ T read(const Factor& factor, Dtype dtype) {
  if (!factor.device) return T(factor.value);
  return dtype == Dtype::f64 ? T(*static_cast<const double*>(factor.device))
                             : T(*static_cast<const float*>(factor.device));
}

// ------------------------------------------------------------------------------------------------ arithmetic

template <bool kFast, class T>
__device__ void activate(const Compose& p, T (&x)[kElements]) {
  const T parameters[] = {T(p.parameters[0]), T(p.parameters[1])};
  activation::with_activation<kFast, true>(activation::Number(p.activation), [&](auto f) {
    constexpr int kUnroll = sizeof(T) == 4 ? kElements : 1;
#pragma unroll kUnroll
    for (T& value : x) value = f.apply(value, parameters);
  });
}

// In double by a call: rare, and inlined it would be most of what there is to compile.
static __device__ __noinline__ void activate_apart(const Compose& p, double (&x)[kElements]) { activate<false>(p, x); }

// The numbers of an operand that many threads share: in cache, so nothing else is kept waiting.
template <class T, bool kVector>
__device__ void load_numbers(const Array& x, const Place& at, int count, T (&value)[kElements]) {
  alignas(16) Word<T> words[kElements] = {};
  load<T, kVector>(x, at, count, words);
  numbers<T, kVector>(x, words, value);
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
      numbers<T, kVector>(p.acc, words[i], value);
#pragma unroll
      for (int j = 0; j < kElements; ++j) sum[j] += value[j], integers[j] += words[i][j];
    }
  }
  if (p.acc.dtype == Dtype::s32) decode<false, T>(Dtype::s32, integers, sum);
}

template <class T>
struct Factors {
  T alpha, beta, scale_out;
};

__device__ inline float fused(float x, float y, float z) { return fmaf(x, y, z); }
__device__ inline double fused(double x, double y, double z) { return fma(x, y, z); }

// y for the elements at a place; aux is written here.
template <class T, bool kVector, bool kPlain>
__device__ void epilogue(const Compose& p, const Factors<T>& factors, const Place& at, int count, T (&y)[kElements]) {
  const auto each = [](auto apply) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) apply(i);
  };
  // Every load of a matrix first, so that they travel together.
  alignas(16) Word<T> acc[kElements] = {}, c[kElements] = {}, argument[kElements] = {};
  const bool reads_c = p.c.data && factors.beta != T(0);
  if (kPlain && p.acc.data) load<T, kVector>(p.acc, at, count, acc);
  if (reads_c) load<T, kVector>(p.c, at, count, c);
  if (p.argument.data) load<T, kVector>(p.argument, at, count, argument);

  // acc * factor + bias, rounded once; or with C in between, each rounded. As our own kernels do it
  // (kernels/sm90/epilogue.cuh): a row may be finished by them, or here, and has the same bits.
  T z[kElements] = {}, factor[kElements], bias[kElements], value[kElements];
  each([&](int i) { factor[i] = 1, bias[i] = T(-0.0); });
  if (p.bias.data) load_numbers<T, kVector>(p.bias, at, count, bias);
  if (p.acc.data) {
    const auto multiply_by = [&](const Array& scale) {
      if (!scale.data) return;
      load_numbers<T, kVector>(scale, at, count, value);
      each([&](int i) { factor[i] *= value[i]; });
    };
    multiply_by(p.scale_a);
    multiply_by(p.scale_b);
    each([&](int i) { factor[i] *= factors.alpha; });
    if constexpr (kPlain) numbers<T, kVector>(p.acc, acc, z);
    if constexpr (!kPlain) add_parts<T, kVector>(p, at, count, z);
  }
  if (reads_c) {
    numbers<T, kVector>(p.c, c, value);
    each([&](int i) { z[i] = fused(factors.beta, value[i], p.acc.data ? z[i] * factor[i] : T(0)) + bias[i]; });
  } else if (p.acc.data) {
    each([&](int i) { z[i] = fused(z[i], factor[i], bias[i]); });
  } else {
    each([&](int i) { z[i] += bias[i]; });
  }
  if (p.aux.data) store<T, kVector>(p.aux, at, count, z);

  each([&](int i) { y[i] = z[i]; });
  if (p.argument.data) numbers<T, kVector>(p.argument, argument, y);
  if constexpr (sizeof(T) == 4) p.fast ? activate<true>(p, y) : activate<false>(p, y);
  if constexpr (sizeof(T) == 8) activate_apart(p, y);
  if (p.argument.data) each([&](int i) { y[i] *= z[i]; });
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
  const Factors<T> factors{read<T>(p.alpha, p.factor_dtype), read<T>(p.beta, p.factor_dtype),
                           read<T>(p.scale_out, p.factor_dtype)};
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
        numbers<float, true>(p.acc, words[i], value);
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
