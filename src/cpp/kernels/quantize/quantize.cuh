// Numbers of a few bits with a scale for each group: a row, 128 of a row, 128 by 128, or everything.
//
// Bound by memory: an element is read once and stays in registers between the search for the largest and the cast. What
// a row has beyond them is read twice, and so is everything where one scale is for all.
//
// Threads that load at once load neighbours: of one row where x runs along its columns, of neighbouring rows otherwise;
// these take some columns each, so that what they write are words of q even then.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

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
constexpr int64_t kMostBlocks = INT32_MAX;

// How x is read: 16 bytes at once, element by element along the columns, or along the rows.
enum class Access { vector, scalar, across };
// All in one launch; or the largest first, then the cast.
enum class Phase { whole, amax, cast };

// One launch.
struct Params {
  CutlassPyQuantize g;
  int64_t tiles;            // each is a block's
  int64_t lines, columns;   // rows of all that are groups of one row, and the columns of a unit
  int64_t units;            // along the columns
  int threads, lanes_log2;  // of a block, and of a unit in it
  bool packed;              // q is written in words
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

// What q may be: its largest magnitude, and two numbers in the low bytes.
struct E4m3 {
  static constexpr const char* name = "e4m3";
  static constexpr float limit = kE4m3.largest;
  __device__ static uint32_t encoded(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return to_fp8(low, kE4m3) | to_fp8(high, kE4m3) << 8;
#endif
  }
};
struct E5m2 {
  static constexpr const char* name = "e5m2";
  static constexpr float limit = kE5m2.largest;
  __device__ static uint32_t encoded(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t bits;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return to_fp8(low, kE5m2) | to_fp8(high, kE5m2) << 8;
#endif
  }
};
struct S8 {
  static constexpr const char* name = "s8";
  static constexpr float limit = 127.0f;
  __device__ static uint32_t encoded(float low, float high) { return integer(low) | integer(high) << 8; }

 private:
  __device__ static uint32_t integer(float x) { return uint32_t(min(max(__float2int_rn(x), -127), 127)) & 0xff; }
};

// The bits of the magnitude, in the order of what they mean; 0 of infinities and NaN.
__device__ inline uint32_t finite_magnitude(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffff;
  return bits < 0x7f800000 ? bits : 0;
}

// Of the largest magnitude, which is not 0. It grows with that, so that the largest scale is the scale of the largest.
template <class Q>
__device__ float scale_of(uint32_t amax) {
  return fmaxf(__uint_as_float(amax) * (1.0f / Q::limit), 0x1p-126f);
}

// ------------------------------------------------------------------------------------------------ chunks of a row

// Neighbouring columns in registers: numbers of 16 bits as they lie, two in a word, others as f32.
template <class X, int kCount>
struct Chunk {
  using T = typename X::Type;
  static constexpr bool packed = sizeof(T) == 2;
  static constexpr int kWords = packed ? (kCount + 1) / 2 : kCount;
  uint32_t words[kWords];

  __device__ float operator[](int i) const {
    if constexpr (packed) return X::value(T(words[i / 2] >> (i % 2 * 16)));
    return __uint_as_float(words[i]);
  }

  // The first `count` columns, 0 in place of the others.
  template <Access access>
  __device__ void load(const T* from, int64_t step, int64_t count) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
    if constexpr (access == Access::vector) {  // all of them, or none
      if (count > 0) load_words(reinterpret_cast<const uint4*>(from));
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i, from += step) {
        if (i >= count) continue;
        if constexpr (packed) {
          words[i / 2] |= uint32_t(__ldg(from)) << (i % 2 * 16);
        } else {
          words[i] = __float_as_uint(X::value(__ldg(from)));
        }
      }
    }
  }

 private:
  __device__ void load_words(const uint4* from) {
    constexpr int kLoads = std::max(kCount * int(sizeof(T)) / 16, 1);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint4 loaded = __ldg(from + i);
      const uint32_t parts[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) < 8) {
          if (4 * i + j < kWords) words[4 * i + j] = parts[j];
        } else if (j % 2 == 0 && 2 * i + j / 2 < kWords) {
          words[2 * i + j / 2] = __float_as_uint(X::value(uint64_t(parts[j + 1]) << 32 | parts[j]));
        }
      }
    }
  }
};

template <class Q, class X, int kCount>
__device__ void store(uint8_t* to, int64_t step, int64_t count, bool packed, float inverse, const Chunk<X, kCount>& x) {
  if constexpr (kCount == 1) {
    if (count > 0) *to = uint8_t(Q::encoded(x[0] * inverse, 0.0f));
  } else {
    constexpr int kWords = kCount / 4;
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = Q::encoded(x[4 * i] * inverse, x[4 * i + 1] * inverse) |
                 Q::encoded(x[4 * i + 2] * inverse, x[4 * i + 3] * inverse) << 16;
    }
    if (packed && count >= kCount) {
      if constexpr (kWords == 1) *reinterpret_cast<uint32_t*>(to) = words[0];
      if constexpr (kWords == 2) *reinterpret_cast<uint2*>(to) = uint2{words[0], words[1]};
      if constexpr (kWords == 4) *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) to[i * step] = uint8_t(words[i / 4] >> (i % 4 * 8));
    }
  }
}

// ------------------------------------------------------------------------------------------------ the kernel

template <class Config>
constexpr bool kBlocks = Config::rows > 1;  // groups of several rows
template <class Config>
constexpr bool kWhole = Config::rows == 0;  // one group
template <class Config>
constexpr bool kRows = Config::rows == 1 && Config::cols == 0;

// Elements that a thread holds: fewer where each has an address of its own.
template <class Config, Access access>
constexpr int kHeld = kRows<Config>     ? 32
                      : kBlocks<Config> ? (access == Access::scalar ? 16 : 32)
                                        : (access == Access::scalar ? 8 : 16);
// Threads of a block, and the most of them: a row's take as many as it is long.
template <class Config, Access access>
constexpr int kThreads = kBlocks<Config> ? Config::rows * Config::cols / kHeld<Config, access> : 256;
template <class Config, Access access>
constexpr int kLargest = kRows<Config> ? kMostThreads : kThreads<Config, access>;

// Neighbouring columns that a thread takes at once.
template <class X, Access access>
constexpr int kChunk = access == Access::across   ? 16
                       : access == Access::scalar ? 1
                                                  : std::max(16 / int(sizeof(typename X::Type)), 4);

// What a thread works on: its group, or the part of a row where the group is everything.
struct Unit {
  int64_t x = 0, q = 0, scale = 0;  // where it begins
  int64_t rows = 0, columns = 0;    // none where there is no such unit
};

__device__ inline void move_to_line(Unit& unit, const CutlassPyQuantize& g, int64_t line, int dimensions) {
  for (int i = dimensions - 1; i > 0; --i) {
    const int64_t at = line % g.extent[i];
    line /= g.extent[i];
    unit.x += at * g.x_stride[i], unit.q += at * g.q_stride[i], unit.scale += at * g.scale_stride[i];
  }
  unit.x += line * g.x_stride[0], unit.q += line * g.q_stride[0], unit.scale += line * g.scale_stride[0];
}

template <class Config, Access access>
__device__ Unit unit_at(const Params& p, int64_t tile, int thread) {
  const CutlassPyQuantize& g = p.g;
  const int rows = g.rank - 2, cols = g.rank - 1;
  Unit unit;
  if constexpr (kBlocks<Config>) {
    const int64_t block_col = tile % p.units, above = tile / p.units;
    const int64_t lines = ceil_div(g.extent[rows], Config::rows), block_row = above % lines;
    if (rows > 0) move_to_line(unit, g, above / lines, rows);
    const int64_t row = block_row * Config::rows, col = block_col * Config::cols;
    unit.x += row * g.x_stride[rows] + col * g.x_stride[cols];
    unit.q += row * g.q_stride[rows] + col * g.q_stride[cols];
    unit.scale += block_row * g.scale_stride[rows] + block_col * g.scale_stride[cols];
    unit.rows = min(g.extent[rows] - row, int64_t(Config::rows));
    unit.columns = min(g.extent[cols] - col, int64_t(Config::cols));
  } else {
    // Neighbours in a tile are on neighbouring rows, which share the lines of memory that scales of 1 x 128 lie in.
    const int beside = p.threads >> p.lanes_log2, across = access == Access::across ? kWarp : 8;
    const int down = access == Access::across || Config::cols ? min(beside, across) : beside;
    const int number =
        access == Access::across ? thread % kWarp + (thread / kWarp >> p.lanes_log2) * kWarp : thread >> p.lanes_log2;
    const int64_t tiles = ceil_div(p.units, beside / down);
    const int64_t line = tile / tiles * down + number % down, at = tile % tiles * (beside / down) + number / down;
    if (line >= p.lines || at >= p.units) return unit;
    const int64_t col = at * p.columns;
    move_to_line(unit, g, line, rows + 1);
    unit.x += col * g.x_stride[cols], unit.q += col * g.q_stride[cols], unit.scale += at * g.scale_stride[cols];
    unit.rows = 1, unit.columns = min(g.extent[cols] - col, p.columns);
  }
  return unit;
}

// The largest value of the threads of a unit. Every thread of the block takes part.
template <bool one_unit, bool across>
__device__ uint32_t joined(uint32_t value, const Params& p, uint32_t* shared) {
  const int thread = threadIdx.x, lanes = one_unit ? p.threads : 1 << p.lanes_log2;
  if constexpr (across && !one_unit) {
    if (lanes == 1) return value;
    const int first = (thread / kWarp >> p.lanes_log2 << p.lanes_log2) * kWarp + thread % kWarp;
    shared[thread] = value;
    __syncthreads();
    for (int i = 0; i < lanes; ++i) value = max(value, shared[first + i * kWarp]);
    __syncthreads();
  } else {
    for (int i = min(lanes, kWarp) / 2; i; i /= 2) value = max(value, __shfl_xor_sync(0xffffffff, value, i));
    if (lanes <= kWarp) return value;
    const int warps = lanes / kWarp, first = thread / lanes * warps;
    if (thread % kWarp == 0) shared[thread / kWarp] = value;
    __syncthreads();
    for (int i = 0; i < warps; ++i) value = max(value, shared[first + i]);
    __syncthreads();
  }
  return value;
}

template <class Config, Access access, Phase phase>
__global__ void __launch_bounds__(kLargest<Config, access>, kMostThreads / kLargest<Config, access>)
    quantize_kernel(const __grid_constant__ Params p) {
  using T = typename Config::X::Type;
  using Values = Chunk<typename Config::X, kChunk<typename Config::X, access>>;
  constexpr bool across = access == Access::across;
  constexpr int kCount = kChunk<typename Config::X, access>, kChunks = kHeld<Config, access> / kCount;
  __shared__ uint32_t shared[kLargest<Config, access>];
  const CutlassPyQuantize& g = p.g;
  const int thread = threadIdx.x, lanes = 1 << p.lanes_log2;
  const int lane = kBlocks<Config> ? thread : across ? thread / kWarp % lanes : thread % lanes;
  const int64_t x_row = g.x_stride[g.rank - 2], x_col = g.x_stride[g.rank - 1];
  const int64_t q_row = g.q_stride[g.rank - 2], q_col = g.q_stride[g.rank - 1];

  float scale = 1;
  uint32_t all = 0;
  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Unit unit = unit_at<Config, access>(p, tile, thread);
    const T* x = static_cast<const T*>(g.x) + unit.x;
    uint8_t* q = static_cast<uint8_t*>(g.q) + unit.q;

    // The i-th chunk of the unit.
    const auto place = [&](int64_t i, auto use) {
      if constexpr (!kBlocks<Config>) {
        use(0, i * kCount, unit.columns - i * kCount);
      } else {
        constexpr int kBeside = Config::cols / kCount;
        const int64_t row = across ? i % Config::rows : i / kBeside;
        const int64_t col = (across ? i / Config::rows : i % kBeside) * kCount;
        use(row, col, row < unit.rows ? unit.columns - col : 0);
      }
    };
    const auto read = [&](int64_t i, Values& values) {
      place(i, [&](int64_t row, int64_t col, int64_t count) {
        values.template load<access>(x + row * x_row + col * x_col, x_col, count);
      });
    };
    const auto write = [&](int64_t i, float inverse, const Values& values) {
      place(i, [&](int64_t row, int64_t col, int64_t count) {
        store<typename Config::Q>(q + row * q_row + col * q_col, q_col, count, p.packed, inverse, values);
      });
    };
    const auto largest = [](uint32_t amax, const Values& values) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) amax = max(amax, finite_magnitude(values[i]));
      return amax;
    };

    Values held[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) read(lane + i * lanes, held[i]);
    if constexpr (phase == Phase::cast) {  // behind the loads, which need not wait for it
      const float found = *g.scales;
      scale = found != 0 ? found : 1.0f;
    }
    const int64_t rest = kRows<Config> ? ceil_div(unit.columns, kCount) : 0;  // chunks of a row, with those not held

    if constexpr (phase != Phase::cast) {
      uint32_t amax = 0;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) amax = largest(amax, held[i]);
      for (int64_t i = lane + kChunks * lanes; i < rest; i += lanes) {
        Values values;
        read(i, values);
        amax = largest(amax, values);
      }
      if constexpr (phase == Phase::amax) {
        all = max(all, amax);
        continue;  // the rest is the cast's
      }
      amax = joined<kBlocks<Config>, across>(amax, p, shared);
      scale = amax ? scale_of<typename Config::Q>(amax) : 1.0f;
      if (lane == 0 && unit.rows) g.scales[unit.scale] = scale;
    }
    const float inverse = __fdiv_rn(1.0f, scale);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) write(lane + i * lanes, inverse, held[i]);
    for (int64_t i = lane + kChunks * lanes; i < rest; i += lanes) {
      Values values;
      read(i, values);
      write(i, inverse, values);
    }
  }
  if constexpr (phase == Phase::amax) {
    all = joined<true, across>(all, p, shared);
    if (thread == 0 && all) {
      atomicMax(reinterpret_cast<unsigned*>(g.scales), __float_as_uint(scale_of<typename Config::Q>(all)));
    }
  }
  if constexpr (phase == Phase::cast) {
    // No element is finite but 0: the scale is 1, which those who still read 0 take it for.
    if (blockIdx.x == 0 && thread == 0 && *g.scales == 0) *g.scales = 1;
  }
}

template <int>  // of which each source that includes this may have one
__global__ void clear_kernel(float* scale) {
  *scale = 0;
}

// ------------------------------------------------------------------------------------------------ its launch

// Whether rows are whole words of so many bytes: columns side by side, and all else a multiple.
inline bool in_words(const void* data, const int64_t* stride, const CutlassPyQuantize& g, int64_t size, int64_t bytes) {
  const int last = g.rank - 1;
  bool aligned = (stride[last] == 1 || g.extent[last] == 1) && reinterpret_cast<uintptr_t>(data) % bytes == 0;
  for (int i = 0; i < last; ++i) aligned = aligned && (g.extent[i] == 1 || stride[i] * size % bytes == 0);
  return aligned;
}

inline int log2_of(int64_t least, int most) {  // the smallest power of 2 that is not below, at most 2^most
  int log2 = 0;
  while (log2 < most && int64_t(1) << log2 < least) ++log2;
  return log2;
}

template <class Config, Access access>
int launch(const CutlassPyQuantize& g, const CutlassPyLaunch& where) {
  constexpr bool across = access == Access::across;
  constexpr int kCount = kChunk<typename Config::X, access>;
  const int64_t rows = g.extent[g.rank - 2], cols = g.extent[g.rank - 1];
  int64_t batch = 1;
  for (int i = 0; i < g.rank - 2; ++i) batch *= g.extent[i];
  Params p{};
  p.g = g, p.lines = batch * rows, p.columns = Config::cols ? Config::cols : cols;
  p.threads = kThreads<Config, access>, p.packed = in_words(g.q, g.q_stride, g, 1, kCount);
  if constexpr (kBlocks<Config>) {
    p.units = ceil_div(cols, Config::cols);
    p.lanes_log2 = log2_of(p.threads, 10);
    p.tiles = batch * ceil_div(rows, Config::rows) * p.units;
  } else {
    const int most = log2_of(kLargest<Config, access> / (across ? kWarp : 1), 10);
    p.lanes_log2 = log2_of(ceil_div(p.columns, kHeld<Config, access>), most);
    p.threads = std::max(p.threads, (across ? kWarp : 1) << p.lanes_log2);
    if (kWhole<Config>) p.columns = int64_t(kHeld<Config, access>) << p.lanes_log2;
    p.units = kRows<Config> ? 1 : ceil_div(cols, p.columns);
    const int beside = p.threads >> p.lanes_log2;
    const int down = across || Config::cols ? std::min(beside, across ? kWarp : 8) : beside;
    p.tiles = ceil_div(p.lines, down) * ceil_div(p.units, beside / down);
  }
  const auto run = [&](auto kernel, int64_t most) {
    const int64_t blocks = std::min(std::max<int64_t>(p.tiles, 1), most);
    return queue(kernel, unsigned(blocks), unsigned(p.threads), cudaStream_t(where.stream), p);
  };
  if constexpr (!kWhole<Config>) {
    return p.tiles ? run(&quantize_kernel<Config, access, Phase::whole>, kMostBlocks) : 0;
  } else {
    if (int error = queue(&clear_kernel<0>, 1, 1, cudaStream_t(where.stream), g.scales)) return error;
    if (int error = run(&quantize_kernel<Config, access, Phase::amax>, int64_t(std::max(where.sm_count, 1)) * 8))
      return error;
    return run(&quantize_kernel<Config, access, Phase::cast>, kMostBlocks);
  }
}

}  // namespace quantization

// The launcher of a configuration: types `X` and `Q`, and the extents `rows` and `cols` of a group, 0 for all.
template <class Config>
struct Quantize {
  static constexpr CutlassPyQuantizeFacts facts() {
    using namespace quantization;
    constexpr int threads = std::max(
        {kLargest<Config, Access::vector>, kLargest<Config, Access::scalar>, kLargest<Config, Access::across>});
    return {Config::X::name, Config::Q::name, Config::rows, Config::cols, threads};
  }

  static size_t workspace_size(const CutlassPyQuantize&, const CutlassPyLaunch&) { return 0; }

  static int run(const CutlassPyQuantize& g, const CutlassPyLaunch& where) {
    using quantization::Access, quantization::in_words, quantization::launch;
    constexpr int kCount = quantization::kChunk<typename Config::X, Access::vector>;
    const bool whole = g.extent[g.rank - 1] % kCount == 0;
    if (whole && in_words(g.x, g.x_stride, g, sizeof(typename Config::X::Type), 16)) {
      return launch<Config, Access::vector>(g, where);
    }
    const auto steps = [&](int i) { return std::llabs(g.x_stride[g.rank - i]); };
    const bool across = g.extent[g.rank - 2] > 1 && steps(2) < steps(1);
    return across ? launch<Config, Access::across>(g, where) : launch<Config, Access::scalar>(g, where);
  }

  static int registers() {
    using namespace quantization;
    constexpr Phase phase = kWhole<Config> ? Phase::cast : Phase::whole;
    return registers_of(reinterpret_cast<const void*>(&quantize_kernel<Config, Access::vector, phase>));
  }
};

}  // namespace cutlass_py
