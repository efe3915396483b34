// The operands of quantize, generated from declaration/operands.py (quantize_operands.inc); what shares a factor, and
// the dtypes of x and q, from declaration/quantize.py (scalings.inc, quantize_from.inc, quantize_to.inc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "abi/dtype.h"
#include "arrays/refusal.h"

namespace cutlass_py::quantization {

// In the order in which errors name them.
enum class Role : uint8_t {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) NAME,
#include "quantize_operands.inc"
#undef CUTLASS_PY_OPERAND
};

inline constexpr const char* kNames[] = {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) #NAME,
#include "quantize_operands.inc"
#undef CUTLASS_PY_OPERAND
};
constexpr int kRoles = sizeof kNames / sizeof kNames[0];

// Rows and columns of a group; 0: all of that axis, and where both are 0, everything. Second names come last.
struct Scaling {
  const char* name;
  int rows, cols;
};
inline constexpr Scaling kScalings[] = {
#define CUTLASS_PY_SCALING(NAME, ROWS, COLS) {NAME, ROWS, COLS},
#include "scalings.inc"
#undef CUTLASS_PY_SCALING
};

inline constexpr Dtype kFrom[] = {
#define CUTLASS_PY_DTYPE(NAME) Dtype::NAME,
#include "quantize_from.inc"
#undef CUTLASS_PY_DTYPE
};
inline constexpr Dtype kTo[] = {
#define CUTLASS_PY_DTYPE(NAME) Dtype::NAME,
#include "quantize_to.inc"
#undef CUTLASS_PY_DTYPE
};

// "e4m3, e5m2 or s8"
template <size_t count>
std::string listed(const Dtype (&dtypes)[count]) {
  std::string names;
  for (size_t i = 0; i < count; ++i) {
    names += std::string(i == 0 ? "" : i + 1 < count ? ", " : " or ") + dtype_name(dtypes[i]);
  }
  return names;
}
inline const std::string kFromNames = listed(kFrom), kToNames = listed(kTo);  // for messages

// Refuses a dtype, which is `found`'s, unless it is one of these.
template <size_t count>
void check_dtype(Dtype dtype, const Dtype (&known)[count], const std::string& names, Refusal found) {
  if (std::find(known, known + count, dtype) == known + count) refuse_type(found.expects(names));
}

}  // namespace cutlass_py::quantization
