// What a call writes overlaps neither itself nor what else it touches, except element for element where that is safe.
#include "operations/gemm/canonical.h"

namespace cutlass_py {
namespace {

// Whether x, which is written, may be y itself, and is.
bool is_in_place(const Request& r, Role role, const Operand& x, Role other, const Operand& y) {
  const bool may_be = facts_of(other).in_place && !r.writes(other);
  return role == Role::out && may_be && same_elements(x, y);
}

// beta = 0 does not read C.
bool is_touched(const Call& call, Role role) { return role != Role::c || call.problem.has_c(); }

// A TensorSpec lies nowhere.
bool have_memory(const Operand& x, const Operand& y) { return !x.metadata_only && !y.metadata_only; }

Refusal shared(const Operand& x, const Operand& y, const char* hint) {
  return Refusal(x.name, "shares elements with", "overlap").beside(y.name).hints(hint);
}

void compare(const Request& r, Call& call, Role role, const Operand& x, Role other_role, const Operand& y) {
  if (!have_memory(x, y)) return;
  const bool in_place = is_in_place(r, role, x, other_role, y);
  const char* hint = role == Role::out ? "it may only be c, gate or a read aux itself, element for element"
                                       : "what is written has memory of its own";
  if (x.list || y.list) {
    if (lists_intersect(x, y, in_place)) refuse(shared(x, y, hint));
  } else if (!in_place && !provably_disjoint(x, y)) {
    call.possible_overlaps.push_back({&x, &y, shared(x, y, hint)});
  }
}

void check_itself(const Operand& x) {
  if (overlaps_itself(x)) {
    refuse(Refusal(x.name, "overlaps itself: it has a stride of 0 or interleaved rows"));
  }
  if (!x.metadata_only && list_overlaps_itself(x)) {
    refuse(Refusal(x.name, "overlaps itself: matrices of the list share elements, or cannot be told apart"));
  }
}

// What a user's epilogue writes, against everything; out also against what it reads, which it may be itself.
void check_user_overlap(const Request& r, Call& call) {
  auto array = [&](size_t i) { return r.user->items[i].array; };
  auto suspect = [&](const Operand& x, const Operand& y, const char* hint) {
    if (!have_memory(x, y) || provably_disjoint(x, y)) return;
    call.possible_overlaps.push_back({&x, &y, shared(x, y, hint)});
  };
  const Operand* out = r.at(Role::out);
  for (size_t i = 0; i < call.user.size(); ++i) {
    const Operand* x = array(i);
    if (!x) continue;
    if (!call.user[i].written) {
      if (!out || (call.user[i].kind == 't' && same_elements(*out, *x))) continue;
      suspect(*out, *x, "it may only be a whole matrix that the epilogue reads, element for element");
      continue;
    }
    check_itself(*x);
    for (const Operand* y : r.operands) {
      if (y) suspect(*x, *y, "what is written has memory of its own");
    }
    for (size_t j = 0; j < call.user.size(); ++j) {
      const bool told = call.user[j].written && j < i;
      if (j != i && !told && array(j)) suspect(*x, *array(j), "what is written has memory of its own");
    }
  }
}

}  // namespace

bool provably_apart(const Request& r) {
  for (Role role : kWritten) {
    const Operand* x = r.at(role);
    if (!x || !r.writes(role)) continue;
    const Range bytes = range_of(*x);
    for (int i = 0; i < kRoles; ++i) {
      const Operand* y = r.operands[i];
      if (!y || y == x || !intersect(bytes, range_of(*y))) continue;
      if (!is_in_place(r, role, *x, Role(i), *y) && !provably_disjoint(*x, *y)) return false;
    }
  }
  return true;
}

void check_overlap(const Request& r, Call& call) {
  if (r.user) check_user_overlap(r, call);
  for (Role role : kWritten) {
    const Operand* x = r.at(role);
    if (!x || !r.writes(role)) continue;
    check_itself(*x);
    for (int i = 0; i < kRoles; ++i) {
      const Role other = Role(i);
      const Operand* y = r.operands[i];
      if (!y || y == x || !is_touched(call, other)) continue;
      if (r.writes(other) && other > role) continue;  // compared the other way round
      compare(r, call, role, *x, other, *y);
    }
  }
}

}  // namespace cutlass_py
