// The operands of gemm, generated from declaration/operands.py (gemm_operands.inc): roles, what is true of each, and
// where each lies in a call and in the launch that is made of it.
#pragma once

#include <array>

#include "abi/kernel.h"
#include "arrays/operand.h"

namespace cutlass_py {

// What an operand is to a call, in the order in which errors name them.
enum class Role : uint8_t {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) NAME,
#include "gemm_operands.inc"
#undef CUTLASS_PY_OPERAND
};

enum class Shape : uint8_t { left, right, result, vector, rows, columns, factor, sum };
enum class Written : uint8_t { never, always, unless_derivative };
enum class BesideLists : uint8_t { list, shared, never };

struct OperandFacts {
  const char* name;
  Shape shape;
  Written written;
  bool number;  // may be one
  BesideLists lists;
  bool in_place;  // `out` may be it, element for element
  bool complex;   // goes with complex operands
  Role mirror;    // whose place it has in the transposed product
};

inline constexpr OperandFacts kOperands[] = {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) \
  {#NAME, Shape::SHAPE, Written::WRITTEN, NUMBER, BesideLists::LISTS, IN_PLACE, COMPLEX, Role::MIRROR},
#include "gemm_operands.inc"
#undef CUTLASS_PY_OPERAND
};
constexpr int kRoles = sizeof kOperands / sizeof kOperands[0];

constexpr const OperandFacts& facts_of(Role role) { return kOperands[int(role)]; }
constexpr const char* name_of(Role role) { return facts_of(role).name; }

// Its index in a call whose product is transposed, or not.
constexpr Role mirrored(Role role, bool transposed) { return transposed ? facts_of(role).mirror : role; }

// Those that a call writes, always or with some functions, the result first.
constexpr int kWrittenCount = [] {
  int count = 0;
  for (const OperandFacts& x : kOperands) count += x.written != Written::never;
  return count;
}();
inline constexpr auto kWritten = [] {
  std::array<Role, kWrittenCount> roles{};
  for (int i = kRoles - 1, next = 0; i >= 0; --i) {
    if (kOperands[i].written != Written::never) roles[size_t(next++)] = Role(i);
  }
  return roles;
}();

// ------------------------------------------------------------------------------------------------ slots

inline bool is_there(const CutlassPyArray& x) { return x.dtype != int32_t(Dtype::none); }

// A member as an array, null where it is a factor; and the address that it holds, null where there is none.
inline CutlassPyArray* array_in(CutlassPyArray& x) { return &x; }
inline const CutlassPyArray* array_in(const CutlassPyArray& x) { return &x; }
inline CutlassPyArray* array_in(const CutlassPyScalar&) { return nullptr; }
inline const void** address_in(CutlassPyArray& x) { return is_there(x) ? const_cast<const void**>(&x.data) : nullptr; }
inline const void** address_in(CutlassPyScalar& x) { return x.device ? &x.device : nullptr; }
inline const void** address_in(void*& x) { return const_cast<const void**>(&x); }
inline const void** address_in(const void*& x) { return &x; }

// Of a Call or a CutlassPyGemm; null where the operand is not read. `transposed` as in Problem.
template <class AnyCall>
const void** address_slot(AnyCall& call, Role role, bool transposed) {
  switch (mirrored(role, transposed)) {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) \
  case Role::NAME: return address_in(call.SLOT);
#include "gemm_operands.inc"
#undef CUTLASS_PY_OPERAND
  }
  return nullptr;
}

// visit(role, array) of each that is no factor, absent ones too. Roles as in the call, transposed or not.
template <class AnyCall, class Visit>
void each_array(AnyCall& call, Visit visit) {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) \
  if (auto* array = array_in(call.SLOT)) visit(Role::NAME, *array);
#include "gemm_operands.inc"
#undef CUTLASS_PY_OPERAND
}

}  // namespace cutlass_py
