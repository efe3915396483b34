// Numbers of every real dtype, between their bits and the type that an epilogue computes in: float or double.
//
// One rounding rule for results: to nearest, ties to even. Integers and fp8 saturate at their largest finite value,
// infinities too; NaN stays NaN in fp8 and becomes 0 in integers. Wider floats overflow to infinity.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "abi/dtype_number.h"
#include "kernels/common/fp8.cuh"

namespace cutlass_py {

// A word that holds one element of any dtype that is computed in T: f64 is computed in double.
template <class T>
using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

// A float from which any narrower format is rounded as from x itself: what is lost beyond 24 bits stays in the last
// one.
__device__ inline float rounded_to_odd(double x) {
  const float truncated = __double2float_rz(x);
  return double(truncated) == x ? truncated : __uint_as_float(__float_as_uint(truncated) | 1);
}
__device__ inline float rounded_to_odd(float x) { return x; }

// Saturates; cvt.rni makes 0 of a NaN of f32, not of f64.
__device__ inline int32_t to_integer(float x) { return __float2int_rn(x); }
__device__ inline int32_t to_integer(double x) { return isnan(x) ? 0 : __double2int_rn(x); }

// The bits of element i: in a word of its own, or packed as a vector in memory.
template <int kSize, bool kPacked, class W, int N>
__device__ W bits_of(const W (&words)[N], int i) {
  if constexpr (!kPacked || kSize >= int(sizeof(W))) {
    return words[i];
  } else {
    constexpr int kPerWord = int(sizeof(W)) / kSize, kWidth = 8 * kSize;
    return words[i / kPerWord] >> (i % kPerWord * kWidth) & ((W(1) << kWidth) - 1);
  }
}

// x = the numbers that `words` hold.
template <bool kPacked, class T, int N>
__device__ void decode(Dtype dtype, const Word<T> (&words)[N], T (&x)[N]) {
  const auto each = [&](auto size, auto convert) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = T(convert(bits_of<size(), kPacked>(words, i)));
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 4> four;
  constexpr std::integral_constant<int, 8> eight;
  switch (dtype) {
    case Dtype::f16: return each(two, [](auto b) { return __half2float(__ushort_as_half(uint16_t(b))); });
    case Dtype::bf16: return each(two, [](auto b) { return __uint_as_float(uint32_t(b) << 16); });
    case Dtype::f32: return each(four, [](auto b) { return __uint_as_float(uint32_t(b)); });
    case Dtype::e4m3: return each(one, [](auto b) { return from_e4m3(uint32_t(b)); });
    case Dtype::e5m2: return each(one, [](auto b) { return from_e5m2(uint32_t(b)); });
    case Dtype::s8: return each(one, [](auto b) { return int8_t(b); });
    case Dtype::u8: return each(one, [](auto b) { return uint8_t(b); });
    case Dtype::s32: return each(four, [](auto b) { return int32_t(b); });
    default:
      if constexpr (sizeof(T) == 8) each(eight, [](auto b) { return __longlong_as_double(int64_t(b)); });
  }
}

// Calls store(bits) with an array of the numbers x, rounded to the dtype, in unsigned integers of its size.
template <class T, int N, class Store>
__device__ void encode(Dtype dtype, const T (&x)[N], Store store) {
  const auto each = [&](auto convert) {
    decltype(convert(x[0])) bits[N];
#pragma unroll
    for (int i = 0; i < N; ++i) bits[i] = convert(x[i]);
    store(bits);
  };
  switch (dtype) {
    case Dtype::f16: return each([](T v) { return uint16_t(__half_as_ushort(__float2half_rn(rounded_to_odd(v)))); });
    case Dtype::bf16:
      return each([](T v) { return uint16_t(__bfloat16_as_ushort(__float2bfloat16_rn(rounded_to_odd(v)))); });
    case Dtype::f32: return each([](T v) { return uint32_t(__float_as_uint(float(v))); });
    case Dtype::e4m3: return each([](T v) { return uint8_t(to_fp8(rounded_to_odd(v), kE4m3)); });
    case Dtype::e5m2: return each([](T v) { return uint8_t(to_fp8(rounded_to_odd(v), kE5m2)); });
    case Dtype::s8: return each([](T v) { return uint8_t(min(max(to_integer(v), -128), 127)); });
    case Dtype::u8: return each([](T v) { return uint8_t(min(max(to_integer(v), 0), 255)); });
    case Dtype::s32: return each([](T v) { return uint32_t(to_integer(v)); });
    default: return each([](T v) { return uint64_t(__double_as_longlong(double(v))); });
  }
}

}  // namespace cutlass_py
