// The operands of quantize, generated from declaration/operands.py (quantize_operands.inc), and what shares a factor
// (scalings.inc).
#pragma once

#include <cstdint>

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

// Rows and columns of a group; 0: all of that axis, and where both are 0, everything.
struct Scaling {
  const char* name;
  int rows, cols;
};
inline constexpr Scaling kScalings[] = {
#define CUTLASS_PY_SCALING(NAME, ROWS, COLS) {NAME, ROWS, COLS},
#include "scalings.inc"
#undef CUTLASS_PY_SCALING
};
constexpr int kScalingCount = sizeof kScalings / sizeof kScalings[0];

}  // namespace cutlass_py::quantization
