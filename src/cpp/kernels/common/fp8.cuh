// Numbers of fp8 by integer arithmetic: machine code for 9.0 may be made from PTX for 8.0, which has no conversions of
// fp8.
//
// Results are rounded to nearest, ties to even, and saturate at the largest finite value, infinities too; NaN stays
// NaN.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace cutlass_py {

struct Fp8 {
  int mantissa;   // bits
  int bias;       // of the exponent
  float largest;  // finite
};
constexpr Fp8 kE4m3{3, 7, 448.0f}, kE5m2{2, 15, 57344.0f};

__device__ inline float from_e5m2(uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits << 8))); }

__device__ inline float from_e4m3(uint32_t bits) {
  if ((bits & 0x7f) == 0x7f) return __int_as_float(0x7fffffff);
  const float magnitude = __uint_as_float((bits & 0x7f) << 20) * 0x1p120f;  // the exponent's bias: 127 - 7
  return __uint_as_float(__float_as_uint(magnitude) | (bits & 0x80) << 24);
}

__device__ inline uint32_t to_fp8(float x, Fp8 format) {
  const uint32_t sign = __float_as_uint(x) >> 24 & 0x80;
  if (isnan(x)) return sign | 0x7f;
  const float magnitude = fminf(fabsf(x), format.largest);
  const int shift = 23 - format.mantissa;
  const float smallest_normal = __uint_as_float(uint32_t(128 - format.bias) << 23);
  if (magnitude < smallest_normal) {
    // Beside this power of two, the float's last bit has the weight of the subnormals' last bit.
    const float anchor = __uint_as_float(uint32_t(128 - format.bias + shift) << 23);
    return sign | (__float_as_uint(magnitude + anchor) - __float_as_uint(anchor));
  }
  const uint32_t bits = __float_as_uint(magnitude);
  const uint32_t rounded = bits + ((1u << (shift - 1)) - 1) + (bits >> shift & 1);
  return sign | ((rounded >> shift) - (uint32_t(127 - format.bias) << format.mantissa));
}

}  // namespace cutlass_py
