// What quantizing reads, holds and writes: numbers of x in registers, their largest, and numbers of q.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/fp8.cuh"
#include "kernels/common/numbers.cuh"

namespace cutlass_py::quantization {

// What q is.
enum class To : int32_t { e4m3, e5m2, s8 };

// ------------------------------------------------------------------------------------------------ numbers

// What x may be.
using numbers::F32, numbers::Bf16, numbers::F16, numbers::F64;

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

}  // namespace cutlass_py::quantization
