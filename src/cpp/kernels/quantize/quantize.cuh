// Numbers of a few bits with a scale for each group: a row, 128 of a row, 128 by 128, or everything.
//
// Bound by memory: an element is read once and stays in registers between the search for the largest and the cast. Of
// a row, or an array, that has more than registers hold, the end stays in them; the rest is read again, backwards, as
// far as it goes from the cache.
//
// Threads that load at once load neighbours: of one row where x runs along its columns, of neighbouring rows otherwise;
// these take some columns each, so that what they write are words of q even then.
#pragma once

#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "abi/kernel.h"
#include "kernels/common/descriptor.cuh"
#include "kernels/common/fp8.cuh"
#include "kernels/common/queue.cuh"

namespace cutlass_py {

template <>
inline constexpr CutlassPyOperation operation_of<CutlassPyQuantize> = CUTLASS_PY_QUANTIZE;

namespace quantization {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;

// How x is read: 16 bytes at once, element by element along the columns, or along the rows.
enum class Access { words, elements, across };
// What q is.
enum class To : int32_t { e4m3, e5m2, s8 };

// The smallest power of 2 that is not below, at most 2^most.
__host__ __device__ constexpr int log2_of(int64_t least, int most = 62) {
  int log2 = 0;
  while (log2 < most && int64_t(1) << log2 < least) ++log2;
  return log2;
}

// One launch. A tile is a block's, a unit is what `lanes` of its threads share a scale of, or a part of a row where one
// scale is for all. Units of one row lie beside each other and below each other in a tile.
struct Params {
  CutlassPyQuantize g;
  To to;
  float inverse_limit;
  uint32_t tiles, batches;                       // parts of a row, which its threads hold one after the other
  int64_t lines, columns;                        // rows of all that are units of one row, and the columns of a unit
  uint32_t units, lines_of_units, tiles_beside;  // along the columns, along the rows, and of tiles along the columns
  int lanes_log2, beside_log2, below_log2;
  bool x_in_words, q_in_words;  // rows begin with aligned ones
};

// ------------------------------------------------------------------------------------------------ numbers

// What x may be: how an element lies in memory, and its value.
struct F32 {
  using Type = uint32_t;
  static constexpr const char* name = "f32";
  __device__ static float value(uint32_t bits) { return __uint_as_float(bits); }
};
struct Bf16 {
  using Type = uint16_t;
  static constexpr const char* name = "bf16";
  __device__ static float value(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
};
struct F16 {
  using Type = uint16_t;
  static constexpr const char* name = "f16";
  __device__ static float value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
};
struct F64 {
  using Type = uint64_t;
  static constexpr const char* name = "f64";
  __device__ static float value(uint64_t bits) { return float(__longlong_as_double(int64_t(bits))); }
};

// What q may be, and its largest magnitude. Kernels are told of it when they run: it is a small part of them.
struct E4m3 {
  static constexpr const char* name = "e4m3";
  static constexpr To to = To::e4m3;
  static constexpr float limit = kE4m3.largest;
};
struct E5m2 {
  static constexpr const char* name = "e5m2";
  static constexpr To to = To::e5m2;
  static constexpr float limit = kE5m2.largest;
};
struct S8 {
  static constexpr const char* name = "s8";
  static constexpr To to = To::s8;
  static constexpr float limit = 127.0f;
};

__device__ inline uint32_t integer(float x) { return uint32_t(min(max(__float2int_rn(x), -127), 127)) & 0xff; }

// Two numbers in the low bytes.
template <class Q>
__device__ uint32_t encoded(float low, float high) {
  if constexpr (Q::to == To::s8) return integer(low) | integer(high) << 8;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t bits;
  if constexpr (Q::to == To::e4m3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  if constexpr (Q::to == To::e5m2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
#else
  constexpr Fp8 format = Q::to == To::e4m3 ? kE4m3 : kE5m2;
  return to_fp8(low, format) | to_fp8(high, format) << 8;
#endif
}

// use(what q is)
template <class Use>
__device__ void with(To to, Use use) {
  if (to == To::e4m3) use(E4m3{});
  if (to == To::e5m2) use(E5m2{});
  if (to == To::s8) use(S8{});
}

constexpr uint32_t kInfinity = 0x7f800000;  // the bits of magnitudes are in the order of what they mean

// Of the largest magnitude, which is not 0. It grows with that, so that the largest scale is the scale of the largest.
__device__ inline float scale_of(uint32_t amax, float inverse_limit) {
  return fmaxf(__uint_as_float(amax) * inverse_limit, 0x1p-126f);
}

// ------------------------------------------------------------------------------------------------ chunks of a row

// Neighbouring columns in registers: numbers of 16 bits as they lie, two in a word, others as f32.
template <class X, int kCount>
struct Chunk {
  using T = typename X::Type;
  static constexpr bool packed = sizeof(T) == 2;
  static constexpr int kWords = packed ? (kCount + 1) / 2 : kCount;
  static constexpr int kLoads = kCount * int(sizeof(T)) / 16;
  uint32_t words[kWords];

  __device__ float operator[](int i) const {
    if constexpr (packed) return X::value(T(words[i / 2] >> (i % 2 * 16)));
    return __uint_as_float(words[i]);
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
  }

  // All of the columns, a step apart.
  __device__ void load(const T* from, int64_t step) {
    T loaded[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i, from += step) loaded[i] = __ldg(from);
    clear();
#pragma unroll
    for (int i = 0; i < kCount; ++i) put(i, loaded[i]);
  }

  // Those of `count` columns that there are; 0 in place of the others.
  __device__ void load_some(const T* from, int64_t step, int64_t count) {
    clear();
#pragma unroll
    for (int i = 0; i < kCount; ++i, from += step) {
      if (i < count) put(i, __ldg(from));
    }
  }

  // All of the columns, side by side, in aligned words.
  __device__ void load_words(const T* from) {
    uint32_t loaded[4 * kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) split(__ldg(reinterpret_cast<const uint4*>(from) + i), loaded + 4 * i);
    put_words(loaded);
  }

  // As above, from anywhere. Only aligned words are read, and none that has no element of the row, of which `before`
  // lie before the first, and `count` from it on.
  __device__ void load_words(const T* from, int64_t before, int64_t count) {
    const int past = int(reinterpret_cast<uintptr_t>(from) % 16);
    if (past == 0 && count >= kCount) return load_words(from);
    if (before < kCount || count < 2 * kCount) return load_some(from, 1, count);
    const uint4* at = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(from) - past);
    uint32_t loaded[4 * (kLoads + 1)];
#pragma unroll
    for (int i = 0; i <= kLoads; ++i) split(__ldg(at + i), loaded + 4 * i);
    if (past & 8) move<2>(loaded);
    if (sizeof(T) < 8 && past & 4) move<1>(loaded);
    if constexpr (sizeof(T) < 4) {
#pragma unroll
      for (int i = 0; i < 4 * kLoads; ++i) loaded[i] = __funnelshift_r(loaded[i], loaded[i + 1], past % 4 * 8);
    }
    put_words(loaded);
  }

 private:
  __device__ void put(int i, T bits) {
    if constexpr (packed) {
      words[i / 2] |= uint32_t(bits) << (i % 2 * 16);
    } else {
      words[i] = __float_as_uint(X::value(bits));
    }
  }
  __device__ void put_words(const uint32_t* loaded) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) < 8) {
        words[i] = loaded[i];
      } else {
        words[i] = __float_as_uint(X::value(uint64_t(loaded[2 * i + 1]) << 32 | loaded[2 * i]));
      }
    }
  }
  __device__ static void split(uint4 from, uint32_t* to) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
  }
  template <int by, int kSize>
  __device__ static void move(uint32_t (&words)[kSize]) {
#pragma unroll
    for (int i = 0; i + by < kSize; ++i) words[i] = words[i + by];
  }
};

// The largest finite magnitude, as the bits of a float.
template <class X, int kCount, int kChunks>
__device__ uint32_t largest(const Chunk<X, kCount> (&x)[kChunks]) {
  uint32_t found = 0;  // of all, each half for itself where there are two numbers in a word
#pragma unroll
  for (const Chunk<X, kCount>& each : x) {
#pragma unroll
    for (uint32_t word : each.words) {
      found = each.packed ? __vmaxu2(found, word & 0x7fff7fff) : max(found, word & 0x7fffffff);
    }
  }
  if constexpr (Chunk<X, kCount>::packed) found = __float_as_uint(X::value(uint16_t(max(found & 0xffff, found >> 16))));
  if (found < kInfinity) return found;
  found = 0;  // that happens rarely
#pragma unroll
  for (const Chunk<X, kCount>& each : x) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t bits = __float_as_uint(each[i]) & 0x7fffffff;
      if (bits < kInfinity) found = max(found, bits);
    }
  }
  return found;
}

// q of a chunk: words of it, or the first byte.
template <class Q, class X, int kCount>
__device__ void encode(const Chunk<X, kCount>& x, float inverse, uint32_t (&words)[(kCount + 3) / 4]) {
  if constexpr (kCount == 1) {
    words[0] = encoded<Q>(x[0] * inverse, 0.0f);
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      words[i] = encoded<Q>(x[4 * i] * inverse, x[4 * i + 1] * inverse) |
                 encoded<Q>(x[4 * i + 2] * inverse, x[4 * i + 3] * inverse) << 16;
    }
  }
}

template <int kWords>
__device__ void store_words(uint8_t* to, const uint32_t (&words)[kWords]) {
  if constexpr (kWords == 1) *reinterpret_cast<uint32_t*>(to) = words[0];
  if constexpr (kWords == 2) *reinterpret_cast<uint2*>(to) = uint2{words[0], words[1]};
  if constexpr (kWords == 4) *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
}

// ------------------------------------------------------------------------------------------------ what a thread does

// The extents of a group, 0 for all.
template <int rows_, int cols_>
struct Group {
  static constexpr int rows = rows_, cols = cols_;
  static constexpr bool block = rows > 1, whole = rows == 0, row = rows == 1 && cols == 0;
};

// Elements that a thread holds: fewer where each has an address of its own, or a register.
template <class Group, class X, Access access>
constexpr int kHeld = [] {
  if (access == Access::elements) return Group::block || Group::row ? 16 : 8;
  if (Group::block) return 32;
  return sizeof(typename X::Type) == 2 && (access == Access::words || Group::row) ? 32 : 16;
}();
// Threads of a block, and the most of them: a row's take as many as it is long.
template <class Group, class X, Access access>
constexpr int kThreads = Group::block ? Group::rows * Group::cols / kHeld<Group, X, access> : 256;
template <class Group, class X, Access access>
constexpr int kLargest = Group::row ? kMostThreads : kThreads<Group, X, access>;

// Neighbouring columns that a thread takes at once.
template <class X, Access access>
constexpr int kChunk = access == Access::across     ? 16
                       : access == Access::elements ? 1
                                                    : std::max(16 / int(sizeof(typename X::Type)), 4);

// The chunks of a thread, one step from each other.
struct Chunks {
  int count = 0;
  int64_t x = 0, q = 0, scale = 0, column = 0;  // where the first begins, and the scale of all
  int64_t x_step = 0, q_step = 0, column_step = 0;
  bool leads = false;  // the threads of its unit
};

__device__ inline void move_to_line(Chunks& to, const CutlassPyQuantize& g, int64_t line, int dimensions) {
#pragma unroll 1
  for (int i = dimensions - 1; i >= 0; --i) {
    const uint64_t extent = g.extent[i], from = line;
    if (i == 0) {
      line = 0;
    } else if ((from | extent) >> 32) {
      line = from / extent;
    } else {  // far cheaper
      line = uint32_t(from) / uint32_t(extent);
    }
    const int64_t at = from - line * extent;
    to.x += at * g.x_stride[i], to.q += at * g.q_stride[i], to.scale += at * g.scale_stride[i];
  }
}

template <class Group, class X, Access access>
__device__ Chunks chunks_at(const Params& p, uint32_t tile, int thread) {
  constexpr bool across = access == Access::across;
  constexpr int kCount = kChunk<X, access>;
  const CutlassPyQuantize& g = p.g;
  const int rows = g.rank - 2, cols = g.rank - 1;
  const auto steps = [](int64_t extent, int64_t log2) { return extent > 0 ? int((extent - 1 >> log2) + 1) : 0; };
  Chunks c;
  if constexpr (Group::block) {
    constexpr int kOfRow = Group::cols / kCount, kAll = kThreads<Group, X, access>;
    const int row = across ? thread % Group::rows : thread / kOfRow;
    const int col = (across ? thread / Group::rows : thread % kOfRow) * kCount;
    const uint32_t beside = tile % p.units, above = tile / p.units;
    const uint32_t below = rows ? above % p.lines_of_units : above;
    if (rows) move_to_line(c, g, above / p.lines_of_units, rows);
    c.scale += below * g.scale_stride[rows] + beside * g.scale_stride[cols];
    const int64_t line = int64_t(below) * Group::rows + row;
    const int64_t lines = g.extent[rows] - line, column = int64_t(beside) * Group::cols + col;
    c.x += line * g.x_stride[rows], c.q += line * g.q_stride[rows], c.column = column, c.leads = thread == 0;
    if constexpr (across) {
      constexpr int kStep = kAll / Group::rows * kCount;
      c.column_step = kStep;
      c.count = lines > 0 ? steps(min(int64_t(Group::cols - col), g.extent[cols] - column), log2_of(kStep)) : 0;
    } else {
      constexpr int kStep = kAll / kOfRow;
      c.x_step = kStep * g.x_stride[rows], c.q_step = kStep * g.q_stride[rows];
      c.count = column < g.extent[cols] ? steps(min(int64_t(Group::rows - row), lines), log2_of(kStep)) : 0;
    }
  } else {
    // Neighbours in a tile are on neighbouring rows, which share the lines of memory that scales of 1 x 128 lie in.
    const int lanes = 1 << p.lanes_log2, warp = thread / kWarp;
    const int lane = (across ? warp : thread) & (lanes - 1);
    const int number = across ? thread % kWarp + (warp >> p.lanes_log2) * kWarp : thread >> p.lanes_log2;
    const uint32_t above = p.tiles_beside > 1 ? tile / p.tiles_beside : tile, beside = tile - above * p.tiles_beside;
    const int64_t line = int64_t(above) << p.below_log2 | (number & ((1 << p.below_log2) - 1));
    const int64_t at = int64_t(beside) << p.beside_log2 | number >> p.below_log2;
    if (line >= p.lines || at >= p.units) return c;
    move_to_line(c, g, line, rows + 1);
    c.scale += at * g.scale_stride[cols];
    c.column = at * p.columns + lane * kCount, c.column_step = lanes * kCount, c.leads = lane == 0;
    c.count = steps(min(p.columns - lane * kCount, g.extent[cols] - c.column), p.lanes_log2 + log2_of(kCount));
  }
  c.x += c.column * g.x_stride[cols], c.q += c.column * g.q_stride[cols];
  if (across || !Group::block) c.x_step = c.column_step * g.x_stride[cols], c.q_step = c.column_step * g.q_stride[cols];
  return c;
}

// The largest value of the threads of a unit: `kAll` neighbours, or as p says. Every thread of the block takes part.
template <int kAll, bool across = false>
__device__ uint32_t joined(uint32_t value, const Params& p, uint32_t* shared) {
  const int thread = threadIdx.x, lanes = kAll ? kAll : 1 << p.lanes_log2;
  if constexpr (across) {
    if (lanes == 1) return value;
    const int first = (thread / kWarp >> p.lanes_log2 << p.lanes_log2) * kWarp + thread % kWarp;
    shared[thread] = value;
    __syncthreads();
    for (int i = 0; i < lanes; ++i) value = max(value, shared[first + i * kWarp]);
  } else {
    for (int i = min(lanes, kWarp) / 2; i; i /= 2) value = max(value, __shfl_xor_sync(0xffffffff, value, i));
    if (lanes <= kWarp) return value;
    const int warps = lanes / kWarp, first = thread / lanes * warps;
    if (thread % kWarp == 0) shared[thread / kWarp] = value;
    __syncthreads();
    for (int i = 0; i < warps; ++i) value = max(value, shared[first + i]);
  }
  return value;
}

// The scale of everything, from what each thread has found. All blocks take part in both.
__device__ inline void start_scale_of_all(const CutlassPyQuantize& g) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *g.scales = 0;
  cooperative_groups::this_grid().sync();
}
template <int kAll>
__device__ float scale_of_all(uint32_t amax, const Params& p, uint32_t* shared) {
  amax = joined<kAll>(amax, p, shared);
  if (threadIdx.x == 0 && amax) {
    atomicMax(reinterpret_cast<unsigned*>(p.g.scales), __float_as_uint(scale_of(amax, p.inverse_limit)));
  }
  cooperative_groups::this_grid().sync();
  const float found = *const_cast<const volatile float*>(p.g.scales);
  // Where no element is finite but 0 the scale is 1, which those who still read 0 take it for.
  if (found == 0 && blockIdx.x == 0 && threadIdx.x == 0) *p.g.scales = 1;
  return found != 0 ? found : 1.0f;
}

template <class Group, class X, Access access>
__global__ void __launch_bounds__(kLargest<Group, X, access>, kMostThreads / kLargest<Group, X, access>)
    quantize_kernel(const __grid_constant__ Params p) {
  using T = typename X::Type;
  constexpr bool across = access == Access::across;
  constexpr int kCount = kChunk<X, access>, kChunks = kHeld<Group, X, access> / kCount;
  constexpr int kAll = kLargest<Group, X, access>, kOneUnit = Group::block ? kAll : 0;
  __shared__ uint32_t shared[kAll];
  const CutlassPyQuantize& g = p.g;
  const int64_t x_col = g.x_stride[g.rank - 1], q_col = g.q_stride[g.rank - 1], columns = g.extent[g.rank - 1];

  Chunks chunks;
  if (!Group::whole) chunks = chunks_at<Group, X, access>(p, blockIdx.x, threadIdx.x);
  Chunk<X, kCount> held[kChunks];
  int first = 0;  // of those held
  bool full = false;
  const auto read = [&](int batch) {
    if constexpr (Group::whole) {
      chunks = chunks_at<Group, X, access>(p, blockIdx.x + batch * gridDim.x, threadIdx.x);
    } else {
      first = batch * kChunks;
    }
    const T* x = static_cast<const T*>(g.x) + chunks.x + first * chunks.x_step;
    const int64_t column = chunks.column + first * chunks.column_step;
    full = chunks.count >= first + kChunks && column + (kChunks - 1) * chunks.column_step + kCount <= columns;
    if (full && (access != Access::words || p.x_in_words)) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i, x += chunks.x_step) {
        if constexpr (access == Access::words) {
          held[i].load_words(x);
        } else {
          held[i].load(x, x_col);
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i, x += chunks.x_step) {
      const int64_t before = column + i * chunks.column_step;
      if (first + i >= chunks.count) {
        held[i].clear();
      } else if constexpr (access == Access::words) {
        held[i].load_words(x, before, columns - before);
      } else {
        held[i].load_some(x, x_col, columns - before);
      }
    }
  };
  const auto write = [&](float inverse) {
    with(p.to, [&](auto q_type) {
      uint8_t* q = static_cast<uint8_t*>(g.q) + chunks.q + first * chunks.q_step;
#pragma unroll
      for (int i = 0; i < kChunks; ++i, q += chunks.q_step) {
        uint32_t words[(kCount + 3) / 4];
        encode<decltype(q_type)>(held[i], inverse, words);
        if (!full && first + i >= chunks.count) continue;
        const int64_t left = columns - chunks.column - (first + i) * chunks.column_step;
        if (kCount > 1 && p.q_in_words && (full || left >= kCount)) {
          store_words(q, words);
          continue;
        }
        uint8_t* to = q;
#pragma unroll
        for (int j = 0; j < kCount; ++j, to += q_col) {
          if (j < left) *to = uint8_t(words[j / 4] >> (j % 4 * 8));
        }
      }
    });
  };

  uint32_t amax = 0;
  const int batches = Group::whole ? (p.tiles - blockIdx.x - 1) / gridDim.x + 1 : Group::row ? p.batches : 1;
  for (int i = 0; i < batches; ++i) {
    read(i);
    if (Group::whole && i == 0) start_scale_of_all(g);  // while what is read first is on its way
    amax = max(amax, largest(held));
  }
  float scale;
  if constexpr (Group::whole) {
    scale = scale_of_all<kAll>(amax, p, shared);
  } else {
    amax = joined<kOneUnit, (across && !kOneUnit)>(amax, p, shared);
    scale = amax ? scale_of(amax, p.inverse_limit) : 1.0f;
    if (chunks.leads) g.scales[chunks.scale] = scale;
  }
  const float inverse = __fdiv_rn(1.0f, scale);
  for (int i = batches - 1; i >= 0; --i) {
    if (i < batches - 1) read(i);
    write(inverse);
  }
}

// ------------------------------------------------------------------------------------------------ its launch

// Whether rows are whole words of so many bytes: columns side by side, and all else a multiple.
inline bool in_words(const void* data, const int64_t* stride, const CutlassPyQuantize& g, int64_t size, int64_t bytes) {
  const int last = g.rank - 1;
  bool aligned = (stride[last] == 1 || g.extent[last] == 1) && reinterpret_cast<uintptr_t>(data) % bytes == 0;
  for (int i = 0; i < last; ++i) aligned = aligned && (g.extent[i] == 1 || stride[i] * size % bytes == 0);
  return aligned;
}

template <class Group, class X, Access access>
int launch(const CutlassPyQuantize& g, To to, float limit, const CutlassPyLaunch& where) {
  constexpr int kCount = kChunk<X, access>, kOfLane = kHeld<Group, X, access>;
  constexpr int kNeighbours = access == Access::across ? kWarp : 1;  // threads of a lane
  const int64_t rows = g.extent[g.rank - 2], cols = g.extent[g.rank - 1];
  int64_t batch = 1, tiles = 0;
  for (int i = 0; i < g.rank - 2; ++i) batch *= g.extent[i];
  int threads = kThreads<Group, X, access>;
  Params p{};
  p.g = g, p.to = to, p.inverse_limit = 1.0f / limit, p.lines = batch * rows;
  p.x_in_words = in_words(g.x, g.x_stride, g, sizeof(typename X::Type), 16);
  p.q_in_words = in_words(g.q, g.q_stride, g, 1, kCount);
  if constexpr (Group::block) {
    p.units = uint32_t(ceil_div(cols, Group::cols)), p.lines_of_units = uint32_t(ceil_div(rows, Group::rows));
    tiles = batch * p.lines_of_units * p.units;
  } else {
    const int64_t longest = Group::cols ? std::min<int64_t>(cols, Group::cols) : cols;
    p.lanes_log2 = log2_of(ceil_div(longest, kOfLane), log2_of(kLargest<Group, X, access> / kNeighbours, 10));
    threads = std::max(threads, kNeighbours << p.lanes_log2);
    p.columns = Group::cols ? Group::cols : Group::row ? cols : int64_t(kOfLane) << p.lanes_log2;
    p.batches = uint32_t(std::max<int64_t>(ceil_div(longest, int64_t(kOfLane) << p.lanes_log2), 1));
    p.units = Group::row ? 1 : uint32_t(ceil_div(cols, p.columns));
    const int all = log2_of(threads, 10) - p.lanes_log2, least = kNeighbours > 1 ? 5 : Group::cols ? 3 : 0;
    p.beside_log2 = log2_of(p.units, std::max(all - least, 0)), p.below_log2 = all - p.beside_log2;
    p.tiles_beside = uint32_t(ceil_div(p.units, int64_t(1) << p.beside_log2));
    tiles = ceil_div(p.lines, int64_t(1) << p.below_log2) * p.tiles_beside;
  }
  if (tiles > INT32_MAX) return cudaErrorInvalidConfiguration;
  p.tiles = uint32_t(tiles);
  const auto kernel = &quantize_kernel<Group, X, access>;
  if constexpr (Group::whole) {
    p.tiles = std::max(p.tiles, 1u);  // without elements there is a scale
    const uint32_t most = uint32_t(std::max(where.sm_count, 1) * (kMostThreads / threads));
    return queue_at_once(kernel, std::min(p.tiles, most), threads, cudaStream_t(where.stream), p);
  } else {
    return tiles ? queue(kernel, p.tiles, unsigned(threads), cudaStream_t(where.stream), p) : 0;
  }
}

}  // namespace quantization

// The launcher of a configuration: types `X` and `Q`, and the extents `rows` and `cols` of a group, 0 for all.
template <class Config>
struct Quantize {
  using X = typename Config::X;
  using Q = typename Config::Q;
  using Group = quantization::Group<Config::rows, Config::cols>;
  using Access = quantization::Access;

  static constexpr CutlassPyQuantizeFacts facts() {
    constexpr int threads =
        std::max({quantization::kLargest<Group, X, Access::words>, quantization::kLargest<Group, X, Access::elements>,
                  quantization::kLargest<Group, X, Access::across>});
    return {X::name, Q::name, Config::rows, Config::cols, threads};
  }

  static size_t workspace_size(const CutlassPyQuantize&, const CutlassPyLaunch&) { return 0; }

  static int run(const CutlassPyQuantize& g, const CutlassPyLaunch& where) {
    using quantization::launch;
    if (g.x_stride[g.rank - 1] == 1) return launch<Group, X, Access::words>(g, Q::to, Q::limit, where);
    const auto steps = [&](int i) { return std::llabs(g.x_stride[g.rank - i]); };
    const bool across = g.extent[g.rank - 2] > 1 && steps(2) < steps(1);
    return across ? launch<Group, X, Access::across>(g, Q::to, Q::limit, where)
                  : launch<Group, X, Access::elements>(g, Q::to, Q::limit, where);
  }

  static int registers() {
    return registers_of(reinterpret_cast<const void*>(&quantization::quantize_kernel<Group, X, Access::words>));
  }
};

}  // namespace cutlass_py
