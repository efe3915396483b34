// The keywords of gemm: which of them may be arrays, and what the others say in numbers, names and switches.
#pragma once

#include <array>

#include <nanobind/nanobind.h>

#include "operations/gemm/operands.h"

namespace cutlass_py {

namespace nb = nanobind;

// As Python hands them over, in the order of the signature; None stands for "not given".
struct Keywords {
#define CUTLASS_PY_KEYWORD(NAME, DEFAULT, ROLE) nb::handle NAME = Py_None;
#include "gemm_keywords.inc"
#undef CUTLASS_PY_KEYWORD
};

enum class Default : uint8_t { none, one, no };  // None, 1.0, False
struct Keyword {
  const char* name;
  Default otherwise;
  int role;  // -1: no operand
  nb::handle Keywords::* value;
};
inline constexpr Keyword kKeywords[] = {
#define CUTLASS_PY_KEYWORD(NAME, DEFAULT, ROLE) {#NAME, Default::DEFAULT, ROLE, &Keywords::NAME},
#include "gemm_keywords.inc"
#undef CUTLASS_PY_KEYWORD
};

// The keywords that may be arrays, in the order in which these are opened; a and b come in front.
struct ArrayKeyword {
  Role role = Role::a;
  nb::handle Keywords::* value = nullptr;
  bool or_number = false;
};
inline constexpr auto kArrayKeywords = [] {
  std::array<ArrayKeyword, kRoles - 2> rows{};
  for (const Keyword& each : kKeywords) {
    if (each.role >= 0) rows[size_t(each.role) - 2] = {Role(each.role), each.value, kOperands[each.role].number};
  }
  return rows;
}();

// What a user's epilogue returns when it is called: its program (user_epilogue.h), and what was given for each
// parameter and output.
struct EpilogueCall {
  int32_t program;
  nb::tuple values;

  template <class Visit>
  void held(Visit visit) const {
    visit(values);
  }
};

// By name. What the dictionary lacks is as gemm has it by default.
Keywords keywords_from(const nb::dict& given);

// Opens every array among the operands and keywords. Destinations must be mutable, and are marked as written.
void open_operands(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords);

// Everything else, and the operands by role; these are complete by now. Whether aux is written is known from here on.
Request request_from(Operands& operands, const Keywords& keywords);

}  // namespace cutlass_py
