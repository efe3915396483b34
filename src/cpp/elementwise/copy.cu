// A strided copy that also transposes, for operands that kernels cannot read as they lie.
//
// Bound by memory. Where the destination has aligned rows and the source runs along either axis, both sides move by 16
// bytes a thread, which transposes in its registers. Everything else goes through a tile in shared memory, so that each
// side is read or written along its own contiguous axis.
#include <algorithm>

#include "elementwise/elementwise.h"

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
  kernel<<<dim3(unsigned(blocks), unsigned(std::min(copy.batch, kMostBlocksY))), threads, 0, stream>>>(copy);
  return cudaGetLastError();
}

// ------------------------------------------------------------------------------------------------ by shared memory

constexpr int kTileThreads = 256;

template <class T>
constexpr int kTile = sizeof(T) <= 4 ? 64 : 32;

// `kVectorStore`: rows of dst are aligned to 16 bytes. dst runs along its columns.
template <class T, bool kVectorStore>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(const __grid_constant__ Copy p) {
  constexpr int kSide = kTile<T>;
  constexpr int kPitch = kSide + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);  // odd in 4-byte banks
  __shared__ T tile[kSide * kPitch];
  const int64_t row0 = blockIdx.x / p.tiles_per_row * kSide, col0 = blockIdx.x % p.tiles_per_row * kSide;
  const int rows = int(min(int64_t(kSide), p.rows - row0)), cols = int(min(int64_t(kSide), p.cols - col0));
  const bool along_rows = llabs(p.src.row) < llabs(p.src.col);
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    const T* from = static_cast<const T*>(p.src.data) + batch * p.src.batch + row0 * p.src.row + col0 * p.src.col;
    T* to = static_cast<T*>(p.dst.data) + batch * p.dst.batch + row0 * p.dst.row + col0 * p.dst.col;
    __syncthreads();  // the tile of the batch before is stored
#pragma unroll 8
    for (int i = threadIdx.x; i < kSide * kSide; i += kTileThreads) {
      const int fast = i % kSide, slow = i / kSide;
      const int row = along_rows ? fast : slow, col = along_rows ? slow : fast;
      if (row < rows && col < cols) tile[row * kPitch + col] = from[row * p.src.row + col * p.src.col];
    }
    __syncthreads();
    constexpr int kVector = kVectorStore ? kVectorBytes / int(sizeof(T)) : 1;
#pragma unroll 4
    for (int i = threadIdx.x; i < kSide * kSide / kVector; i += kTileThreads) {
      const int row = i / (kSide / kVector), col = i % (kSide / kVector) * kVector;
      if (row >= rows || col >= cols) continue;
      if (kVectorStore && col + kVector <= cols) {
        struct alignas(kVectorBytes) Vector {
          T value[kVector];
        } vector;
#pragma unroll
        for (int v = 0; v < kVector; ++v) vector.value[v] = tile[row * kPitch + col + v];
        *reinterpret_cast<Vector*>(to + row * p.dst.row + col) = vector;
      } else {
        for (int v = 0; v < kVector && col + v < cols; ++v)
          to[row * p.dst.row + (col + v) * p.dst.col] = tile[row * kPitch + col + v];
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------ by registers

constexpr int kWarps = 4;
constexpr int kEdge = 32;  // elements that a thread has in flight where a square is not whole

// How the threads of a block cover rows and columns, in squares. A warp reads lines of 128 bytes and writes 64 where it
// transposes, 512 on both sides where it does not.
template <bool kTurn>
struct Cover {
  static constexpr int kLanesDown = kTurn ? 8 : 1, kLanesAcross = 32 / kLanesDown;
  static constexpr int kWarpsDown = kTurn ? 1 : kWarps, kWarpsAcross = kWarps / kWarpsDown;
  static constexpr int kRows = kLanesDown * kWarpsDown, kCols = kLanesAcross * kWarpsAcross;
};

// Elements of one vector, and so the side of the square that a thread transposes.
template <class T>
constexpr int kSquare = kVectorBytes / int(sizeof(T));

// The square as words: of each line, four.
template <class T>
using Square = uint32_t[kSquare<T>][4];

// y[j] = the elements j of each line of x.
__device__ void turn(const Square<uint8_t>& x, Square<uint8_t>& y) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t a = x[4 * i][j], b = x[4 * i + 1][j], c = x[4 * i + 2][j], d = x[4 * i + 3][j];
      const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);  // a0 b0 a1 b1
      const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
      y[4 * j][i] = __byte_perm(ab, cd, 0x5410);
      y[4 * j + 1][i] = __byte_perm(ab, cd, 0x7632);
      y[4 * j + 2][i] = __byte_perm(ab_high, cd_high, 0x5410);
      y[4 * j + 3][i] = __byte_perm(ab_high, cd_high, 0x7632);
    }
  }
}

__device__ void turn(const Square<uint16_t>& x, Square<uint16_t>& y) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      y[2 * j][i] = __byte_perm(x[2 * i][j], x[2 * i + 1][j], 0x5410);
      y[2 * j + 1][i] = __byte_perm(x[2 * i][j], x[2 * i + 1][j], 0x7632);
    }
  }
}

__device__ void turn(const Square<uint32_t>& x, Square<uint32_t>& y) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j][i] = x[i][j];
  }
}

// 16 bytes from any address, by the aligned words around them: each holds a byte that is asked for.
__device__ void load_line(const void* from, uint32_t (&line)[4]) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t(3));
  const int shift = int(address & 3) * 8;
  uint32_t word[5] = {words[0], words[1], words[2], words[3], 0};
  if (shift) word[4] = words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) line[i] = __funnelshift_r(word[i], word[i + 1], shift);
}

// dst runs along its columns by whole aligned vectors; src along rows (kTurn) or along columns, kAligned likewise.
template <class T, bool kTurn, bool kAligned>
__global__ void __launch_bounds__(32 * kWarps) line_kernel(const __grid_constant__ Copy p) {
  using C = Cover<kTurn>;
  constexpr int kSide = kSquare<T>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int down = warp % C::kWarpsDown * C::kLanesDown + lane % C::kLanesDown;
  const int across = warp / C::kWarpsDown * C::kLanesAcross + lane / C::kLanesDown;
  const int64_t row0 = (blockIdx.x / p.tiles_per_row * C::kRows + down) * kSide;
  const int64_t col0 = (blockIdx.x % p.tiles_per_row * C::kCols + across) * kSide;
  const int rows = int(min(int64_t(kSide), p.rows - row0)), cols = int(min(int64_t(kSide), p.cols - col0));
  if (rows <= 0 || cols <= 0) return;
  const int64_t pitch = kTurn ? p.src.col : p.src.row;
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    const T* from = static_cast<const T*>(p.src.data) + batch * p.src.batch + row0 * p.src.row + col0 * p.src.col;
    T* to = static_cast<T*>(p.dst.data) + batch * p.dst.batch + row0 * p.dst.row + col0;
    if (rows == kSide && cols == kSide) {
      alignas(kVectorBytes) Square<T> x, turned;
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
        if constexpr (kAligned) {
          *reinterpret_cast<uint4*>(x[i]) = *reinterpret_cast<const uint4*>(from + i * pitch);
        } else {
          load_line(from + i * pitch, x[i]);
        }
      }
      if constexpr (kTurn) turn(x, turned);
      const Square<T>& y = kTurn ? turned : x;
#pragma unroll
      for (int i = 0; i < kSide; ++i)
        *reinterpret_cast<uint4*>(to + i * p.dst.row) = *reinterpret_cast<const uint4*>(y[i]);
    } else {
      // At the edges by elements; many are loaded before the first is stored: their misses overlap.
      const int lines = kTurn ? cols : rows, length = kTurn ? rows : cols;
      constexpr int kStep = kEdge / kSide;
      for (int first = 0; first < length; first += kStep) {
        T x[kStep][kSide];
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
#pragma unroll
          for (int line = 0; line < kSide; ++line) {
            if (first + i < length && line < lines) x[i][line] = from[line * pitch + first + i];
          }
        }
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
          const int along = first + i;
#pragma unroll
          for (int line = 0; line < kSide; ++line) {
            if (along < length && line < lines)
              to[kTurn ? along * p.dst.row + line : line * p.dst.row + along] = x[i][line];
          }
        }
      }
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
  const bool whole = p.dst.col == 1 && sizeof(T) < kVectorBytes && aligned<T>(p.dst, p.dst.row);
  if constexpr (sizeof(T) <= 4) {
    const auto by_lines = [&](auto* kernel, auto cover) {
      return launch(kernel, 32 * kWarps, p, cover.kRows * kSquare<T>, cover.kCols * kSquare<T>, stream);
    };
    if (whole && p.src.row == 1) {
      const bool lines = aligned<T>(p.src, p.src.col);
      return by_lines(lines ? &line_kernel<T, true, true> : &line_kernel<T, true, false>, Cover<true>());
    }
    if (whole && p.src.col == 1) return by_lines(&line_kernel<T, false, false>, Cover<false>());
  }
  auto* kernel = whole ? &tile_kernel<T, true> : &tile_kernel<T, false>;
  return launch(kernel, kTileThreads, p, kTile<T>, kTile<T>, stream);
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
