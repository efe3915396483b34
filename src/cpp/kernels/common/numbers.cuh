// Dtypes in kernels of our own: how an element lies in memory, and its value.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace cutlass_py::numbers {

struct F32 {
  using Type = uint32_t;
  static constexpr const char* name = "f32";
  __device__ static float value(uint32_t bits) { return __uint_as_float(bits); }
};
// In memory f32; the tensor cores read 10 bits of mantissa.
struct Tf32 {
  using Type = uint32_t;
  static constexpr const char* name = "f32";
  __device__ static float value(uint32_t bits) { return __uint_as_float(bits & 0xffffe000); }
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

struct S8 {
  using Type = uint8_t;
  static constexpr const char* name = "s8";
  __device__ static float value(uint8_t bits) { return float(int8_t(bits)); }
};
struct U8 {
  using Type = uint8_t;
  static constexpr const char* name = "u8";
  __device__ static float value(uint8_t bits) { return float(bits); }
};
struct S32 {
  using Type = uint32_t;
  static constexpr const char* name = "s32";
  __device__ static int32_t value(uint32_t bits) { return int32_t(bits); }
};

struct E4m3 {
  using Type = uint8_t;
  static constexpr const char* name = "e4m3";
};
struct E5m2 {
  using Type = uint8_t;
  static constexpr const char* name = "e5m2";
};

}  // namespace cutlass_py::numbers
