// A strided copy that also transposes, for operands that kernels cannot read as they lie.
//
// Bound by memory. Where the destination has aligned rows and the source runs along either axis, both sides move by 16
// bytes a thread, a source that is not aligned by words. Everything else goes through a tile in shared memory by
// elements, so that each side is read or written along its own contiguous axis.
#include <algorithm>

#include "kernels/elementwise/elementwise.h"

namespace cutlass_py {
namespace {

constexpr int kVectorBytes = 16;

template <int N>
struct alignas(N) Bytes {
  unsigned char raw[N];
};

// Everything by which elements are found: strides in elements.
struct Copy {
  CutlassPyArray src, dst;
  int64_t batch, rows, cols, tiles_per_row;
};

int launch(void (*kernel)(Copy), int threads, Copy copy, int tile_rows, int tile_cols, cudaStream_t stream) {
  copy.tiles_per_row = ceil_div(copy.cols, tile_cols);
  const int64_t blocks = ceil_div(copy.rows, tile_rows) * copy.tiles_per_row;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (blocks * copy.batch == 0) return 0;
  return queue(kernel, dim3(unsigned(blocks), unsigned(std::min(copy.batch, kMostBlocksY))), threads, stream, copy);
}

// ------------------------------------------------------------------------------------------------ vectors

// Elements of one vector.
template <class T>
constexpr int kSide = kVectorBytes / int(sizeof(T));

// One vector, as words.
struct alignas(kVectorBytes) Line {
  uint32_t word[4];
};

// By one instruction: nvcc 13.0 takes an assignment apart into four.
__device__ inline void store_vector(const Line& line, void* to) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(line.word[0]),
               "r"(line.word[1]), "r"(line.word[2]), "r"(line.word[3])
               : "memory");
#else
  *static_cast<Line*>(to) = line;
#endif
}

// The first `count` elements; to where a vector may be stored.
template <class T>
__device__ void store_line(const Line& line, T* to, int count) {
  if (count >= kSide<T>) return store_vector(line, to);
  const auto* values = reinterpret_cast<const T*>(line.word);
#pragma unroll
  for (int i = 0; i < kSide<T>; ++i) {
    if (i < count) to[i] = values[i];
  }
}

// ------------------------------------------------------------------------------------------------ by elements

constexpr int kTileThreads = 256;

template <class T>
constexpr int kTile = sizeof(T) <= 4 ? 64 : 32;

// `kVectorStore`: rows of dst are aligned to 16 bytes. dst runs along its columns.
template <class T, bool kVectorStore>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(const __grid_constant__ Copy p) {
  constexpr int kEdge = kTile<T>;
  constexpr int kPitch = kEdge + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);  // odd in 4-byte banks
  __shared__ T tile[kEdge * kPitch];
  const int64_t row0 = blockIdx.x / p.tiles_per_row * kEdge, col0 = blockIdx.x % p.tiles_per_row * kEdge;
  const int rows = int(min(int64_t(kEdge), p.rows - row0)), cols = int(min(int64_t(kEdge), p.cols - col0));
  const bool along_rows = llabs(p.src.row) < llabs(p.src.col);
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    const T* from = static_cast<const T*>(p.src.data) + batch * p.src.batch + row0 * p.src.row + col0 * p.src.col;
    T* to = static_cast<T*>(p.dst.data) + batch * p.dst.batch + row0 * p.dst.row + col0 * p.dst.col;
    constexpr int kEach = kEdge * kEdge / kTileThreads;
    T value[kEach];  // all of a thread's are loaded before the first is looked at
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int fast = threadIdx.x % kEdge, slow = (threadIdx.x + j * kTileThreads) / kEdge;
      const int row = along_rows ? fast : slow, col = along_rows ? slow : fast;
      if (row < rows && col < cols) value[j] = from[row * p.src.row + col * p.src.col];
    }
    __syncthreads();  // the tile of the batch before is stored
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int fast = threadIdx.x % kEdge, slow = (threadIdx.x + j * kTileThreads) / kEdge;
      tile[(along_rows ? fast : slow) * kPitch + (along_rows ? slow : fast)] = value[j];
    }
    __syncthreads();
    if constexpr (kVectorStore) {
      constexpr int kAcross = kEdge / kSide<T>;
#pragma unroll
      for (int i = threadIdx.x; i < kEdge * kAcross; i += kTileThreads) {
        const int row = i / kAcross, col = i % kAcross * kSide<T>;
        if (row >= rows) break;
        Line line;
#pragma unroll
        for (int v = 0; v < kSide<T>; ++v) reinterpret_cast<T*>(line.word)[v] = tile[row * kPitch + col + v];
        store_line(line, to + row * p.dst.row + col, cols - col);
      }
    } else {
#pragma unroll 4
      for (int i = threadIdx.x; i < kEdge * kEdge; i += kTileThreads) {
        const int row = i / kEdge, col = i % kEdge;
        if (row < rows && col < cols) to[row * p.dst.row + col * p.dst.col] = tile[row * kPitch + col];
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------ by vectors

// Lines that begin anywhere, `pitch` elements apart: the first `lines` of them, and of those the first `count`
// elements. What follows is arbitrary. Where not all is there, or aligned, by the aligned words around each line, every
// one of which holds an element that is asked for. All is loaded before anything is looked at: latencies overlap.
template <class T, bool kAligned, int kLines>
__device__ void load_lines(const T* from, int64_t pitch, int lines, int count, Line (&x)[kLines]) {
  if (kAligned && lines >= kLines && count >= kSide<T>) {
#pragma unroll
    for (int i = 0; i < kLines; ++i) x[i] = *reinterpret_cast<const Line*>(from + i * pitch);
    return;
  }
  uint32_t word[kLines][5];
  int before[kLines];  // bytes of the first word that are not the line's
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(from + i * pitch);
    const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t(3));
    before[i] = int(address & 3);
    const bool there = i < lines && count > 0;
    const int end = there ? before[i] + min(count, kSide<T>) * int(sizeof(T)) : 0;
#pragma unroll
    for (int j = 0; j < 5; ++j) word[i][j] = 4 * j < end ? __ldg(words + j) : 0;
  }
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[i].word[j] = __funnelshift_r(word[i][j], word[i][j + 1], before[i] * 8);
  }
}

// y[j] = the elements j of each line of x.
__device__ void turn(const Line (&x)[16], Line (&y)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t a = x[4 * i].word[j], b = x[4 * i + 1].word[j];
      const uint32_t c = x[4 * i + 2].word[j], d = x[4 * i + 3].word[j];
      const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);  // a0 b0 a1 b1
      const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
      y[4 * j].word[i] = __byte_perm(ab, cd, 0x5410);
      y[4 * j + 1].word[i] = __byte_perm(ab, cd, 0x7632);
      y[4 * j + 2].word[i] = __byte_perm(ab_high, cd_high, 0x5410);
      y[4 * j + 3].word[i] = __byte_perm(ab_high, cd_high, 0x7632);
    }
  }
}

__device__ void turn(const Line (&x)[8], Line (&y)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      y[2 * j].word[i] = __byte_perm(x[2 * i].word[j], x[2 * i + 1].word[j], 0x5410);
      y[2 * j + 1].word[i] = __byte_perm(x[2 * i].word[j], x[2 * i + 1].word[j], 0x7632);
    }
  }
}

__device__ void turn(const Line (&x)[4], Line (&y)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j].word[i] = x[i].word[j];
  }
}

__device__ void turn(const Line (&x)[2], Line (&y)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) y[j].word[i] = x[i / 2].word[2 * j + i % 2];
  }
}

// A tile of squares, which threads transpose in their registers and exchange by vectors, so that both sides move by
// lines of 256 bytes (single bytes: 128 on the side of dst; more would not fit into 48 KB).
template <class T>
struct TurnTile {
  static constexpr int kDown = 16, kAcross = sizeof(T) == 1 ? 8 : 16, kThreads = kDown * kAcross;
  static constexpr int kRows = kDown * kSide<T>, kCols = kAcross * kSide<T>;
};

// dst runs along its columns by whole aligned vectors, src along its rows: kAligned by such vectors too.
template <class T, bool kAligned>
__global__ void __launch_bounds__(TurnTile<T>::kThreads) turn_kernel(const __grid_constant__ Copy p) {
  using Tile = TurnTile<T>;
  __shared__ Line tile[Tile::kRows][Tile::kAcross];
  // Eight threads side by side meet different banks: down a column when they fill the tile, along a row after that.
  const auto at = [&](int row, int across) -> Line& { return tile[row][across ^ row / kSide<T> % 8]; };
  const int64_t row0 = blockIdx.x / p.tiles_per_row * Tile::kRows, col0 = blockIdx.x % p.tiles_per_row * Tile::kCols;
  const int rows = int(min(int64_t(Tile::kRows), p.rows - row0)), cols = int(min(int64_t(Tile::kCols), p.cols - col0));
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    const T* from = static_cast<const T*>(p.src.data) + batch * p.src.batch + row0 + col0 * p.src.col;
    T* to = static_cast<T*>(p.dst.data) + batch * p.dst.batch + row0 * p.dst.row + col0;
    const int row = threadIdx.x % Tile::kDown * kSide<T>, across = threadIdx.x / Tile::kDown;
    const int col = across * kSide<T>;
    Line x[kSide<T>], turned[kSide<T>];
    load_lines<T, kAligned>(from + row + col * p.src.col, p.src.col, cols - col, rows - row, x);
    turn(x, turned);
    __syncthreads();  // the tile of the batch before is stored
#pragma unroll
    for (int i = 0; i < kSide<T>; ++i) at(row + i, across) = turned[i];
    __syncthreads();
    const int c = threadIdx.x % Tile::kAcross, first = threadIdx.x / Tile::kAcross;
    T* const line = to + first * p.dst.row + c * kSide<T>;
    if (rows == Tile::kRows && cols == Tile::kCols) {
#pragma unroll
      for (int i = 0; i < kSide<T>; ++i) x[i] = at(i * Tile::kDown + first, c);
#pragma unroll
      for (int i = 0; i < kSide<T>; ++i) store_line(x[i], line + i * Tile::kDown * p.dst.row, kSide<T>);
    } else {
      for (int r = first; r < rows; r += Tile::kDown)
        store_line(at(r, c), line + (r - first) * p.dst.row, cols - c * kSide<T>);
    }
  }
}

constexpr int kWarps = 4, kLines = 4;  // of a block, each with so many rows

// dst runs along its columns by whole aligned vectors, src along its columns: kAligned by such vectors too.
template <class T, bool kAligned>
__global__ void __launch_bounds__(32 * kWarps) line_kernel(const __grid_constant__ Copy p) {
  const int64_t row = (blockIdx.x / p.tiles_per_row * kWarps + threadIdx.x / 32) * kLines;
  const int64_t col = (blockIdx.x % p.tiles_per_row * 32 + threadIdx.x % 32) * kSide<T>;
  const int count = int(min(int64_t(kSide<T>), p.cols - col)), lines = int(min(int64_t(kLines), p.rows - row));
  if (count <= 0) return;
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    const T* from = static_cast<const T*>(p.src.data) + batch * p.src.batch + row * p.src.row + col;
    T* to = static_cast<T*>(p.dst.data) + batch * p.dst.batch + row * p.dst.row + col;
    Line x[kLines];
    load_lines<T, kAligned>(from, p.src.row, lines, count, x);
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      if (i < lines) store_line(x[i], to + i * p.dst.row, count);
    }
  }
}

// ------------------------------------------------------------------------------------------------ launches

// Whether lines of `array`, `pitch` elements apart, are whole aligned vectors.
template <class T>
bool aligned(const CutlassPyArray& array, int64_t pitch) {
  constexpr int64_t size = sizeof(T);
  return (reinterpret_cast<uintptr_t>(array.data) | pitch * size | array.batch * size) % kVectorBytes == 0;
}

template <class T>
int copy_as(const Copy& p, cudaStream_t stream) {
  if constexpr (sizeof(T) < kVectorBytes) {
    using Tile = TurnTile<T>;
    const bool whole = p.dst.col == 1 && aligned<T>(p.dst, p.dst.row);
    if (whole && p.src.row == 1) {
      auto* kernel = aligned<T>(p.src, p.src.col) ? &turn_kernel<T, true> : &turn_kernel<T, false>;
      return launch(kernel, Tile::kThreads, p, Tile::kRows, Tile::kCols, stream);
    }
    if (whole && p.src.col == 1) {
      auto* kernel = aligned<T>(p.src, p.src.row) ? &line_kernel<T, true> : &line_kernel<T, false>;
      return launch(kernel, 32 * kWarps, p, kWarps * kLines, 32 * kSide<T>, stream);
    }
    if (whole) return launch(&tile_kernel<T, true>, kTileThreads, p, kTile<T>, kTile<T>, stream);
  }
  return launch(&tile_kernel<T, false>, kTileThreads, p, kTile<T>, kTile<T>, stream);
}

}  // namespace

int copy(const CutlassPyArray* source, const CutlassPyArray* destination, int32_t itemsize, int64_t batch, int64_t rows,
         int64_t cols, void* stream) {
  Copy p{*source, *destination, batch, rows, cols};
  if (runs_along_rows(p.dst, rows, cols)) {
    p.src = transposed(p.src), p.dst = transposed(p.dst);
    std::swap(p.rows, p.cols);
  }
  auto* s = cudaStream_t(stream);
  switch (itemsize) {
    case 1: return copy_as<uint8_t>(p, s);
    case 2: return copy_as<uint16_t>(p, s);
    case 4: return copy_as<uint32_t>(p, s);
    case 8: return copy_as<uint64_t>(p, s);
    case 16: return copy_as<Bytes<16>>(p, s);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace cutlass_py
