// Rows by their numbers, one behind the other: what kernels that load by the copy engine cannot find by themselves.
//
// Bound by memory: each thread moves the widest unit that addresses, rows and their length are multiples of, 16 bytes
// at most, of several rows at once, so that latencies overlap.
#include <algorithm>

#include "kernels/elementwise/elementwise.h"

namespace cutlass_py {
namespace {

constexpr int kWarps = 4, kLines = 4;  // of a block, each with so many rows
constexpr uint64_t kMostUnit = 16;     // bytes

struct alignas(16) Vector {
  uint64_t half[2];
};

// Strides in units.
struct Gather {
  const void* src;
  void* dst;
  const void* numbers;
  int64_t src_rows, src_row, src_col, dst_row, rows, cols, tiles_per_row;
  bool wide;
};

template <class T>
__global__ void __launch_bounds__(32 * kWarps) gather_kernel(const __grid_constant__ Gather p) {
  const int64_t row = (blockIdx.x / p.tiles_per_row * kWarps + threadIdx.x / 32) * kLines;
  const int64_t col = blockIdx.x % p.tiles_per_row * 32 + threadIdx.x % 32;
  if (col >= p.cols) return;
  const T* from = static_cast<const T*>(p.src) + col * p.src_col;
  T* to = static_cast<T*>(p.dst) + row * p.dst_row + col;
  int64_t at[kLines];
  T x[kLines];
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
    const int64_t line = min(row + i, p.rows - 1);
    at[i] = p.wide ? static_cast<const int64_t*>(p.numbers)[line] : static_cast<const int32_t*>(p.numbers)[line];
  }
#pragma unroll
  for (int i = 0; i < kLines; ++i) x[i] = at[i] >= 0 && at[i] < p.src_rows ? from[at[i] * p.src_row] : T{};
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
    if (row + i < p.rows) to[i * p.dst_row] = x[i];
  }
}

template <class T>
int launch(Gather p, cudaStream_t stream) {
  p.tiles_per_row = ceil_div(p.cols, 32);
  const int64_t blocks = ceil_div(p.rows, kWarps * kLines) * p.tiles_per_row;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return blocks ? queue(gather_kernel<T>, unsigned(blocks), 32 * kWarps, stream, p) : 0;
}

}  // namespace

int gather(const CutlassPyArray* source, int64_t source_rows, const void* numbers, int32_t wide,
           const CutlassPyArray* destination, int32_t itemsize, int64_t rows, int64_t cols, void* stream) {
  const CutlassPyArray &src = *source, &dst = *destination;
  uint64_t unit = uint64_t(itemsize);
  if (src.col == 1) {
    const auto address = [](const CutlassPyArray& x) { return uint64_t(reinterpret_cast<uintptr_t>(x.data)); };
    const uint64_t all = address(src) | address(dst) | uint64_t(src.row * itemsize) | uint64_t(dst.row * itemsize) |
                         uint64_t(cols * itemsize) | kMostUnit;
    unit = all & (~all + 1);
  }
  const int64_t size = int64_t(unit);
  const auto units = [&](int64_t elements) { return elements * itemsize / size; };
  const Gather p{src.data,       dst.data, numbers,     source_rows, units(src.row), src.col == 1 ? 1 : src.col,
                 units(dst.row), rows,     units(cols), 0,           wide != 0};
  auto* s = cudaStream_t(stream);
  switch (unit) {
    case 1: return launch<uint8_t>(p, s);
    case 2: return launch<uint16_t>(p, s);
    case 4: return launch<uint32_t>(p, s);
    case 8: return launch<uint64_t>(p, s);
    case 16: return launch<Vector>(p, s);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace cutlass_py
