// CUDA's half precision, for the compiler of the host.
#pragma once

#include "cuda_runtime.h"

using __half = _Float16;

inline __half __ushort_as_half(uint16_t x) { return simulated::bits<__half>(x); }
inline uint16_t __half_as_ushort(__half x) { return simulated::bits<uint16_t>(x); }
inline float __half2float(__half x) { return float(x); }
inline __half __float2half_rn(float x) { return __half(x); }
