// The numbering of dtypes and the arithmetic they are computed in, generated from dtypes.py (dtypes.inc).
#pragma once

#include <cstdint>

#include "abi/dtype_number.h"

namespace cutlass_py {

enum class GeneratedDtype : uint8_t {
#define CUTLASS_PY_DTYPE(NAME, BITS, CODE, STORAGE, SCALAR, MANTISSA) NAME,
#include "dtypes.inc"
#undef CUTLASS_PY_DTYPE
};
#define CUTLASS_PY_DTYPE(NAME, BITS, CODE, STORAGE, SCALAR, MANTISSA) \
  static_assert(int(Dtype::NAME) == int(GeneratedDtype::NAME) && dtype_size(Dtype::NAME) == BITS / 8);
#include "dtypes.inc"
#undef CUTLASS_PY_DTYPE

struct DtypeRow {
  const char* name;
  int bits, dlpack_code;
  Dtype storage;  // itself, unless the dtype only names an arithmetic (tf32 is held as f32)
  Dtype scalar;   // of factors and scales in memory, beside sums in this dtype
  int mantissa;   // bits, of each part of a complex number; 0 for integers
};

inline constexpr DtypeRow kDtypes[] = {
#define CUTLASS_PY_DTYPE(NAME, BITS, CODE, STORAGE, SCALAR, MANTISSA) \
  {#NAME, BITS, CODE, Dtype(STORAGE), Dtype(SCALAR), MANTISSA},
#include "dtypes.inc"
#undef CUTLASS_PY_DTYPE
};
inline constexpr int kDtypeCount = sizeof kDtypes / sizeof kDtypes[0];

// `compute=` names an arithmetic: for inputs of dtype `input`, kernels with operands of dtype `operand`. The first row
// of an input dtype is its default.
struct ComputeRow {
  Dtype input;
  const char* name;
  Dtype operand, accumulator, output;  // output: the default dtype of D
};

inline constexpr ComputeRow kCompute[] = {
#define CUTLASS_PY_COMPUTE(INPUT, NAME, OPERAND, ACCUMULATOR, OUTPUT) \
  {Dtype::INPUT, #NAME, Dtype::OPERAND, Dtype::ACCUMULATOR, Dtype::OUTPUT},
#include "compute.inc"
#undef CUTLASS_PY_COMPUTE
};

// Whether operands of these dtypes may be multiplied with each other.
constexpr bool pairs_with(Dtype a, Dtype b) {
#define CUTLASS_PY_PAIR(X, Y) \
  if ((a == Dtype::X && b == Dtype::Y) || (a == Dtype::Y && b == Dtype::X)) return true;
#include "pairs.inc"
#undef CUTLASS_PY_PAIR
  return a == b;
}

// By DLPack's type codes: 0 and 1 are integers, 5 is complex.
constexpr int type_code(Dtype dtype) { return dtype == Dtype::none ? -1 : kDtypes[int(dtype)].dlpack_code; }
constexpr bool is_complex(Dtype dtype) { return type_code(dtype) == 5; }
constexpr bool is_integer(Dtype dtype) { return type_code(dtype) == 0 || type_code(dtype) == 1; }
constexpr bool is_fp8(Dtype dtype) { return dtype == Dtype::e4m3 || dtype == Dtype::e5m2; }
constexpr Dtype scalar_dtype(Dtype accumulator) { return kDtypes[int(accumulator)].scalar; }

inline const char* dtype_name(Dtype dtype) { return dtype == Dtype::none ? "none" : kDtypes[int(dtype)].name; }

}  // namespace cutlass_py
