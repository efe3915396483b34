// The numbering of activations and their parameters, generated from epilogues.py (activations.inc).
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace cutlass_py {

enum class Activation : uint8_t {
#define CUTLASS_PY_ACTIVATION(NAME, COUNT, DERIVATIVE, PARAMETER0, PARAMETER1, DEFAULT0, DEFAULT1) NAME,
#include "activations.inc"
#undef CUTLASS_PY_ACTIVATION
};

struct ActivationRow {
  const char* name;
  int parameter_count;
  bool derivative;  // takes aux, where the function was evaluated
  const char* parameters[2];
  double defaults[2];  // NAN: has to be given
};

inline constexpr ActivationRow kActivations[] = {
#define CUTLASS_PY_ACTIVATION(NAME, COUNT, DERIVATIVE, PARAMETER0, PARAMETER1, DEFAULT0, DEFAULT1) \
  {#NAME, COUNT, DERIVATIVE, {PARAMETER0, PARAMETER1}, {DEFAULT0, DEFAULT1}},
#include "activations.inc"
#undef CUTLASS_PY_ACTIVATION
};
inline constexpr int kActivationCount = sizeof kActivations / sizeof kActivations[0];

// Its number; -1 where there is none of that name.
constexpr int activation_named(std::string_view name) {
  for (int i = 0; i < kActivationCount; ++i) {
    if (name == kActivations[i].name) return i;
  }
  return -1;
}

}  // namespace cutlass_py
