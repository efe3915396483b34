// The numbers of dtypes in the C ABI, and their bytes, for kernels that are compiled where no tables are generated;
// dtype.h holds them against those.
#pragma once

#include <cstdint>

namespace cutlass_py {

#define CUTLASS_PY_DTYPE_NUMBERS(X) \
  X(f16, 2)                         \
  X(bf16, 2)                        \
  X(f32, 4)                         \
  X(f64, 8)                         \
  X(tf32, 4)                        \
  X(e4m3, 1)                        \
  X(e5m2, 1)                        \
  X(s8, 1)                          \
  X(u8, 1)                          \
  X(s32, 4)                         \
  X(c64, 8)                         \
  X(c128, 16)                       \
  X(tf32x3, 4)                      \
  X(fast, 4)

enum class Dtype : uint8_t {
#define CUTLASS_PY_DTYPE(NAME, BYTES) NAME,
  CUTLASS_PY_DTYPE_NUMBERS(CUTLASS_PY_DTYPE)
#undef CUTLASS_PY_DTYPE
      none = 255,
};

#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr int dtype_size(Dtype dtype) {
  switch (dtype) {
#define CUTLASS_PY_DTYPE(NAME, BYTES) \
  case Dtype::NAME: return BYTES;
    CUTLASS_PY_DTYPE_NUMBERS(CUTLASS_PY_DTYPE)
#undef CUTLASS_PY_DTYPE
    default: return 0;
  }
}

}  // namespace cutlass_py
