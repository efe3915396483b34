// Of the toolkit's header, what kernels use.
#pragma once

struct __half {
  unsigned short bits;
};

__device__ inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
__device__ inline float __half2float(__half x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
