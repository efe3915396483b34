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
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "abi/kernel.h"
#include "kernels/common/descriptor.cuh"
#include "kernels/common/queue.cuh"
#include "kernels/quantize/chunk.cuh"

namespace cutlass_py {

template <>
inline constexpr CutlassPyOperation operation_of<CutlassPyQuantize> = CUTLASS_PY_QUANTIZE;

namespace quantization {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;

// How x is read: 16 bytes at once, element by element along the columns, or along the rows.
enum class Access { words, elements, across };

// The least n, at most `most`, with 2^n >= least.
__host__ __device__ constexpr int log2_of(int64_t least, int most = 62) {
  int log2 = 0;
  while (log2 < most && int64_t(1) << log2 < least) ++log2;
  return log2;
}

// One launch. A tile is a block's; a unit is a group, or a part of a row where one scale is for all, and has `lanes` of
// the block's threads. A tile has one unit of several rows; of one row, 2^beside_log2 along the columns by
// 2^below_log2 along the rows.
struct Params {
  CutlassPyQuantize g;
  To to;
  float inverse_limit;
  uint32_t tiles;
  uint32_t units;           // along the columns
  uint32_t lines_of_units;  // units of several rows along the rows
  uint32_t tiles_beside;    // tiles along the columns; from here on, of units of one row
  uint32_t batches;         // parts of a row, which its threads hold one after the other
  int64_t lines, columns;   // rows in all, and the columns of a unit
  int lanes_log2, beside_log2, below_log2;
  bool x_in_words, q_in_words;  // rows begin with aligned ones
};

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
  if constexpr (!Group::whole) chunks = chunks_at<Group, X, access>(p, blockIdx.x, threadIdx.x);
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
    if constexpr (Group::whole) {
      if (i == 0) start_scale_of_all(g);  // while what is read first is on its way
    }
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
    if constexpr (Group::row) {  // one of more than a block holds
      const bool alone = std::all_of(g.extent, g.extent + g.rank - 1, [](int64_t extent) { return extent == 1; });
      if (alone && g.extent[g.rank - 1] > 32 * quantization::kMostThreads)
        return run_as<quantization::Group<0, 0>>(g, where);
    }
    return run_as<Group>(g, where);
  }

  static int registers() {  // where x is read in words, as it mostly is
    return registers_of(reinterpret_cast<const void*>(&quantization::quantize_kernel<Group, X, Access::words>));
  }

 private:
  template <class Group>
  static int run_as(const CutlassPyQuantize& g, const CutlassPyLaunch& where) {
    using quantization::launch;
    if (g.x_stride[g.rank - 1] == 1) return launch<Group, X, Access::words>(g, Q::to, Q::limit, where);
    const auto steps = [&](int i) { return std::llabs(g.x_stride[g.rank - i]); };
    const bool across = g.extent[g.rank - 2] > 1 && steps(2) < steps(1);
    return across ? launch<Group, X, Access::across>(g, Q::to, Q::limit, where)
                  : launch<Group, X, Access::elements>(g, Q::to, Q::limit, where);
  }
};

}  // namespace cutlass_py
