// The two elementwise kernels behind a GEMM: a strided copy that also transposes (operands that TMA or 2.x cannot read
// as they lie), and the composed epilogue d = alpha * acc + beta * c with a dtype conversion.
//
// Both are bound by memory. Dtypes and strides are switched at run time: one kernel serves every combination.
#include <cstdint>
#include <cstdlib>

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"
#include "dtype.h"
#include "kernel.h"

namespace cutlass_py {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBatches = 65535;  // gridDim.y

struct Tiles {
  int64_t rows, cols, tiles_per_row;
};

int checked_launch() { return cudaGetLastError(); }

template <int N>
struct alignas(N) Bytes {
  unsigned char raw[N];
};

// ------------------------------------------------------------------------------------------------- strided copy

// dst runs along its columns; a tile goes through shared memory so that both sides are read and written along their own
// contiguous axis. `along_rows`: the source is contiguous along rows.
template <class T, int kTile, bool kVectorStore>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(CutlassPyArray src, CutlassPyArray dst, bool along_rows, Tiles tiles) {
  constexpr int kPitch = kTile + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);  // odd in 4-byte banks
  __shared__ T tile[kTile * kPitch];
  const int64_t row0 = blockIdx.x / tiles.tiles_per_row * kTile;
  const int64_t col0 = blockIdx.x % tiles.tiles_per_row * kTile;
  const T* from = static_cast<const T*>(src.data) + blockIdx.y * src.batch + row0 * src.row + col0 * src.col;
  T* to = static_cast<T*>(dst.data) + blockIdx.y * dst.batch + row0 * dst.row + col0 * dst.col;
  const int rows = int(min(int64_t(kTile), tiles.rows - row0));
  const int cols = int(min(int64_t(kTile), tiles.cols - col0));

#pragma unroll 8
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int fast = i % kTile, slow = i / kTile;
    const int row = along_rows ? fast : slow, col = along_rows ? slow : fast;
    if (row < rows && col < cols) tile[row * kPitch + col] = from[row * src.row + col * src.col];
  }
  __syncthreads();

  constexpr int kVector = kVectorStore ? 16 / int(sizeof(T)) : 1;
#pragma unroll 4
  for (int i = threadIdx.x; i < kTile * kTile / kVector; i += kThreads) {
    const int row = i / (kTile / kVector), col = i % (kTile / kVector) * kVector;
    if (row >= rows || col >= cols) continue;
    if (kVectorStore && col + kVector <= cols) {
      struct alignas(16) Vector {
        T value[kVector];
      } vector;
#pragma unroll
      for (int v = 0; v < kVector; ++v) vector.value[v] = tile[row * kPitch + col + v];
      *reinterpret_cast<Vector*>(to + row * dst.row + col) = vector;
    } else {
      for (int v = 0; v < kVector && col + v < cols; ++v)
        to[row * dst.row + (col + v) * dst.col] = tile[row * kPitch + col + v];
    }
  }
}

template <class T>
int copy_as(CutlassPyArray src, CutlassPyArray dst, int64_t batch, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kTile = sizeof(T) <= 4 ? 64 : 32;
  constexpr int64_t size = sizeof(T);
  const Tiles tiles{rows, cols, (cols + kTile - 1) / kTile};
  const int64_t blocks = (rows + kTile - 1) / kTile * tiles.tiles_per_row;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const bool along_rows = std::llabs(src.row) < std::llabs(src.col);
  const bool vector = dst.col == 1 && size < 16 &&
                      (reinterpret_cast<uintptr_t>(dst.data) | dst.row * size | dst.batch * size) % 16 == 0;
  for (int64_t first = 0; first < batch; first += kMostBatches) {
    const dim3 grid(unsigned(blocks), unsigned(min(batch - first, int64_t(kMostBatches))));
    CutlassPyArray from = src, to = dst;
    from.data = static_cast<T*>(src.data) + first * src.batch;
    to.data = static_cast<T*>(dst.data) + first * dst.batch;
    if (vector) {
      copy_kernel<T, kTile, true><<<grid, kThreads, 0, stream>>>(from, to, along_rows, tiles);
    } else {
      copy_kernel<T, kTile, false><<<grid, kThreads, 0, stream>>>(from, to, along_rows, tiles);
    }
    if (int error = checked_launch()) return error;
  }
  return 0;
}

void transpose(CutlassPyArray& array) {
  const int64_t row = array.row;
  array.row = array.col;
  array.col = row;
}

int copy(const CutlassPyArray* source, const CutlassPyArray* destination, int32_t itemsize, int64_t batch, int64_t rows,
         int64_t cols, void* stream) {
  CutlassPyArray src = *source, dst = *destination;
  if (std::llabs(dst.row) < std::llabs(dst.col)) {
    transpose(src);
    transpose(dst);
    const int64_t swapped = rows;
    rows = cols;
    cols = swapped;
  }
  auto* s = cudaStream_t(stream);
  switch (itemsize) {
    case 1: return copy_as<uint8_t>(src, dst, batch, rows, cols, s);
    case 2: return copy_as<uint16_t>(src, dst, batch, rows, cols, s);
    case 4: return copy_as<uint32_t>(src, dst, batch, rows, cols, s);
    case 8: return copy_as<uint64_t>(src, dst, batch, rows, cols, s);
    case 16: return copy_as<Bytes<16>>(src, dst, batch, rows, cols, s);
    default: return cudaErrorInvalidValue;
  }
}

// ------------------------------------------------------------------------------------------------- composed epilogue

template <class Compute>
__device__ Compute load(const CutlassPyArray& array, int64_t index) {
  switch (Dtype(array.dtype)) {
    case Dtype::f16: return Compute(float(static_cast<const cutlass::half_t*>(array.data)[index]));
    case Dtype::bf16: return Compute(float(static_cast<const cutlass::bfloat16_t*>(array.data)[index]));
    case Dtype::f32: return Compute(static_cast<const float*>(array.data)[index]);
    case Dtype::e4m3: return Compute(float(static_cast<const cutlass::float_e4m3_t*>(array.data)[index]));
    case Dtype::e5m2: return Compute(float(static_cast<const cutlass::float_e5m2_t*>(array.data)[index]));
    default: return Compute(static_cast<const double*>(array.data)[index]);
  }
}

// CUTLASS's conversions to fp8 saturate; a cast overflows as in NumPy and torch: e4m3 (no infinity) to NaN, e5m2 to
// inf.
__device__ float overflowing_e4m3(float x) { return fabsf(x) > 464.0f ? NAN : x; }  // halfway from 448, even
__device__ bool overflows_e5m2(float x) { return fabsf(x) >= 61440.0f; }            // halfway from 57344, odd

__device__ cutlass::float_e5m2_t to_e5m2(float x) {
  return overflows_e5m2(x) ? cutlass::float_e5m2_t::bitcast(x < 0 ? 0xfc : 0x7c) : cutlass::float_e5m2_t(x);
}

template <class Compute>
__device__ void store(const CutlassPyArray& array, int64_t index, Compute value) {
  switch (Dtype(array.dtype)) {
    case Dtype::f16: static_cast<cutlass::half_t*>(array.data)[index] = cutlass::half_t(float(value)); break;
    case Dtype::bf16: static_cast<cutlass::bfloat16_t*>(array.data)[index] = cutlass::bfloat16_t(float(value)); break;
    case Dtype::f32: static_cast<float*>(array.data)[index] = float(value); break;
    case Dtype::e4m3:
      static_cast<cutlass::float_e4m3_t*>(array.data)[index] = cutlass::float_e4m3_t(overflowing_e4m3(float(value)));
      break;
    case Dtype::e5m2: static_cast<cutlass::float_e5m2_t*>(array.data)[index] = to_e5m2(float(value)); break;
    default: static_cast<double*>(array.data)[index] = double(value); break;
  }
}

constexpr int kComposeRows = 32, kComposeCols = 128;

template <class Compute>
__global__ void __launch_bounds__(kThreads)
    compose_kernel(CutlassPyArray acc, CutlassPyArray c, CutlassPyArray d, Compute alpha, Compute beta, Tiles tiles) {
  const int64_t row0 = blockIdx.x / tiles.tiles_per_row * kComposeRows + threadIdx.x / 32;
  const int64_t col0 = blockIdx.x % tiles.tiles_per_row * kComposeCols + threadIdx.x % 32;
  const int64_t batch = blockIdx.y;
#pragma unroll 1
  for (int i = 0; i < kComposeRows / (kThreads / 32); ++i) {
    const int64_t row = row0 + i * (kThreads / 32);
#pragma unroll
    for (int j = 0; j < kComposeCols / 32; ++j) {
      const int64_t col = col0 + j * 32;
      if (row >= tiles.rows || col >= tiles.cols) continue;
      Compute value =
          acc.data ? alpha * load<Compute>(acc, batch * acc.batch + row * acc.row + col * acc.col) : Compute(0);
      if (c.data) value += beta * load<Compute>(c, batch * c.batch + row * c.row + col * c.col);
      store(d, batch * d.batch + row * d.row + col * d.col, value);
    }
  }
}

void advance(CutlassPyArray& array, int64_t batches) {
  if (array.data) array.data = static_cast<char*>(array.data) + batches * array.batch * dtype_size(Dtype(array.dtype));
}

int compose(const CutlassPyArray* accumulator, const CutlassPyArray* source, const CutlassPyArray* destination,
            double alpha, double beta, int64_t batch, int64_t rows, int64_t cols, void* stream) {
  CutlassPyArray acc = accumulator ? *accumulator : CutlassPyArray{};
  CutlassPyArray c = source ? *source : CutlassPyArray{};
  CutlassPyArray d = *destination;
  if (std::llabs(d.row) < std::llabs(d.col)) {
    transpose(acc);
    transpose(c);
    transpose(d);
    const int64_t swapped = rows;
    rows = cols;
    cols = swapped;
  }
  const Tiles tiles{rows, cols, (cols + kComposeCols - 1) / kComposeCols};
  const int64_t blocks = (rows + kComposeRows - 1) / kComposeRows * tiles.tiles_per_row;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const bool in_double = Dtype(acc.dtype) == Dtype::f64 || (c.data && Dtype(c.dtype) == Dtype::f64);
  for (int64_t first = 0; first < batch; first += kMostBatches) {
    const dim3 grid(unsigned(blocks), unsigned(min(batch - first, int64_t(kMostBatches))));
    if (in_double) {
      compose_kernel<double><<<grid, kThreads, 0, cudaStream_t(stream)>>>(acc, c, d, alpha, beta, tiles);
    } else {
      compose_kernel<float><<<grid, kThreads, 0, cudaStream_t(stream)>>>(acc, c, d, float(alpha), float(beta), tiles);
    }
    if (int error = checked_launch()) return error;
    advance(acc, kMostBatches);
    advance(c, kMostBatches);
    advance(d, kMostBatches);
  }
  return 0;
}

}  // namespace
}  // namespace cutlass_py

extern "C" {
extern const CutlassPyElementwise cutlass_py_elementwise;
const CutlassPyElementwise cutlass_py_elementwise = {&cutlass_py::copy, &cutlass_py::compose};
}
