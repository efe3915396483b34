// What a call writes overlaps neither itself nor what else it touches, except element for element where that is safe.
#include <algorithm>
#include <cstdlib>

#include "operations/gemm/canonical.h"

namespace cutlass_py {
namespace {

// Two elements of one destination at one place.
bool self_overlapping(const Operand& x) {
  struct {
    int64_t stride, extent;
  } dims[kMaxRank];
  int count = 0;
  for (int i = x.list ? 1 : 0; i < x.rank; ++i) {
    if (x.shape[i] == 0) return false;
    if (x.shape[i] > 1) dims[count++] = {std::abs(x.strides[i]), x.shape[i]};
  }
  int64_t span = 1;  // elements covered by the dimensions so far, from the smallest stride on
  for (; count; --count) {
    auto* least = std::min_element(dims, dims + count, [](auto& p, auto& q) { return p.stride < q.stride; });
    if (least->stride < span) return true;
    span += least->stride * (least->extent - 1);
    *least = dims[count - 1];
  }
  return false;
}

// ------------------------------------------------------------------------------------------------ lists

struct Member {
  Range range;
  uintptr_t moved;  // bytes from the first
  size_t index;
};

// Of a list, of a batch of matrices, or of one.
std::vector<Member> members_of(const Operand& x) {
  Operand first = x;
  const bool several = x.rank == 3;
  if (several) first.shape[0] = 1;
  const Range range = range_of(first);
  const size_t count = several ? size_t(x.shape[0]) : 1;
  std::vector<Member> members;
  for (size_t i = 0; i < count; ++i) {
    const uintptr_t moved = x.list    ? reinterpret_cast<uintptr_t>((*x.list)[i]) - reinterpret_cast<uintptr_t>(x.data)
                            : several ? i * uintptr_t(x.strides[0] * dtype_size(x.dtype))
                                      : 0;
    members.push_back({{range.first + moved, range.last + moved}, moved, i});
  }
  std::sort(members.begin(), members.end(),
            [](const Member& p, const Member& q) { return p.range.first < q.range.first; });
  return members;
}

Operand matrix_at(const Operand& x, const Member& member) {
  Operand matrix = x;
  matrix.list = nullptr;
  matrix.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(x.data) + member.moved);
  if (x.rank < 3) return matrix;
  matrix.rank = 2;
  std::copy(x.shape + 1, x.shape + 3, matrix.shape);
  std::copy(x.strides + 1, x.strides + 3, matrix.strides);
  return matrix;
}

// Decides pairs of matrices of two lists. Only so many whose bytes interleave: the others count as overlapping.
class Pairs {
 public:
  Pairs(const Operand& x, const Operand& y) : x_(x), y_(y) {}
  bool overlap(const Member& p, const Member& q) {
    if (!intersect(p.range, q.range)) return false;
    return --left_ < 0 || !surely_disjoint(matrix_at(x_, p), matrix_at(y_, q));
  }

 private:
  const Operand &x_, &y_;
  int left_ = 1 << 14;
};

bool lists_intersect(const Operand& written, const Operand& other, bool in_place) {
  Pairs pairs(written, other);
  const std::vector<Member> left = members_of(written), right = members_of(other);
  size_t from = 0;
  for (const Member& x : left) {
    while (from < right.size() && right[from].range.last <= x.range.first) ++from;
    for (size_t j = from; j < right.size() && right[j].range.first < x.range.last; ++j) {
      if (!(in_place && x.index == right[j].index) && pairs.overlap(x, right[j])) return true;
    }
  }
  return false;
}

bool list_overlaps_itself(const Operand& x) {
  if (!x.list) return false;
  Pairs pairs(x, x);
  const std::vector<Member> members = members_of(x);
  for (size_t i = 0; i < members.size(); ++i) {
    for (size_t j = i + 1; j < members.size() && members[j].range.first < members[i].range.last; ++j) {
      if (pairs.overlap(members[i], members[j])) return true;
    }
  }
  return false;
}

// ------------------------------------------------------------------------------------------------ the call

bool written(const Request& r, Role role) {
  if (role == Role::aux) return !r.function().derivative;
  return role == Role::out || role == Role::bias_grad;
}

// Whether x, which is written, may be y itself, and is.
bool is_in_place(const Request& r, Role role, const Operand& x, Role other, const Operand& y) {
  const bool may_be = other == Role::c || other == Role::gate || (other == Role::aux && !written(r, other));
  return role == Role::out && may_be && same_elements(x, y);
}

// beta = 0 does not read C.
bool is_touched(const Call& call, Role role) { return role != Role::c || call.problem.has_c(); }

// A TensorSpec lies nowhere.
bool have_memory(const Operand& x, const Operand& y) { return !x.metadata_only && !y.metadata_only; }

void compare(const Request& r, Call& call, Role role, const Operand& x, Role other_role, const Operand& y) {
  if (!have_memory(x, y)) return;
  const bool in_place = is_in_place(r, role, x, other_role, y);
  auto message = [&] {
    const char* exception = role == Role::out ? "; it may only be c, gate or a read aux itself, element for element"
                                              : "; what is written has memory of its own";
    return std::string(x.name) + " shares elements with " + y.name + exception;
  };
  if (x.list || y.list) {
    if (lists_intersect(x, y, in_place)) refuse(message());
  } else if (!in_place && !surely_disjoint(x, y)) {
    call.suspects.push_back({&x, &y, message()});
  }
}

}  // namespace

Range range_of(const Operand& x) {
  int64_t low = 0, high = 0;
  for (int i = x.list ? 1 : 0; i < x.rank; ++i) {
    if (x.shape[i] == 0) return {0, 0};
    (x.strides[i] < 0 ? low : high) += (x.shape[i] - 1) * x.strides[i];
  }
  const int64_t size = dtype_size(x.dtype);
  const auto base = reinterpret_cast<uintptr_t>(x.data);
  return {base + uintptr_t(low * size), base + uintptr_t((high + 1) * size)};
}

bool same_elements(const Operand& x, const Operand& y) {
  if (x.data != y.data || x.dtype != y.dtype || bool(x.list) != bool(y.list)) return false;
  if (x.list && *x.list != *y.list) return false;
  const int rank = std::min(x.rank, y.rank), i = x.rank - rank, j = y.rank - rank;
  const auto is_one = [](int64_t extent) { return extent == 1; };
  if (!std::all_of(x.shape, x.shape + i, is_one) || !std::all_of(y.shape, y.shape + j, is_one)) return false;
  if (!std::equal(x.shape + i, x.shape + x.rank, y.shape + j)) return false;
  const int first = x.list ? 1 : 0;  // both have one, whose stride means nothing
  return same_strides(x.shape + i + first, x.strides + i + first, y.strides + j + first, rank - first);
}

bool surely_disjoint(const Operand& x, const Operand& y) {
  const Range rx = range_of(x), ry = range_of(y);
  if (!intersect(rx, ry)) return true;
  // Column slices of one buffer: the same pitch, and byte intervals that stay apart modulo it.
  if (x.rank < 2 || y.rank < 2) return false;
  const int64_t x_size = dtype_size(x.dtype), y_size = dtype_size(y.dtype);
  const int64_t pitch = x.strides[x.rank - 2] * x_size;
  if (x.strides[x.rank - 1] != 1 || y.strides[y.rank - 1] != 1) return false;
  if (pitch <= 0 || pitch != y.strides[y.rank - 2] * y_size) return false;
  for (const Operand* each : {&x, &y}) {
    for (int i = 0; i < each->rank - 2; ++i) {
      if (each->strides[i] * dtype_size(each->dtype) % pitch != 0) return false;
    }
  }
  const auto from = int64_t(reinterpret_cast<uintptr_t>(x.data)), to = int64_t(reinterpret_cast<uintptr_t>(y.data));
  const int64_t offset = ((to - from) % pitch + pitch) % pitch;
  return offset >= x.shape[x.rank - 1] * x_size && offset + y.shape[y.rank - 1] * y_size <= pitch;
}

namespace {

void check_itself(const Operand& x) {
  if (self_overlapping(x)) {
    refuse(std::string(x.name) + " overlaps itself: it has a stride of 0 or interleaved rows");
  }
  if (!x.metadata_only && list_overlaps_itself(x)) {
    refuse(std::string(x.name) + " overlaps itself: matrices of the list share elements, or cannot be told apart");
  }
}

// What a user's epilogue writes, against everything; out also against what it reads, which it may be itself.
void check_user_overlap(const Request& r, Call& call) {
  auto array = [&](size_t i) { return r.user->items[i].array; };
  auto suspect = [&](const Operand& x, const Operand& y, const char* exception) {
    if (!have_memory(x, y) || surely_disjoint(x, y)) return;
    call.suspects.push_back({&x, &y, std::string(x.name) + " shares elements with " + y.name + exception});
  };
  const Operand* out = r.at(Role::out);
  for (size_t i = 0; i < call.user.size(); ++i) {
    const Operand* x = array(i);
    if (!x) continue;
    if (!call.user[i].written) {
      if (!out || (call.user[i].kind == 't' && same_elements(*out, *x))) continue;
      suspect(*out, *x, "; it may only be a whole matrix that the epilogue reads, element for element");
      continue;
    }
    check_itself(*x);
    for (const Operand* y : r.operands) {
      if (y) suspect(*x, *y, "; what is written has memory of its own");
    }
    for (size_t j = 0; j < call.user.size(); ++j) {
      const bool told = call.user[j].written && j < i;
      if (j != i && !told && array(j)) suspect(*x, *array(j), "; what is written has memory of its own");
    }
  }
}

}  // namespace

bool surely_apart(const Request& r) {
  for (Role role : {Role::out, Role::aux, Role::bias_grad}) {
    const Operand* x = r.at(role);
    if (!x || !written(r, role)) continue;
    const Range bytes = range_of(*x);
    for (int i = 0; i < kRoles; ++i) {
      const Operand* y = r.operands[i];
      if (!y || y == x || !intersect(bytes, range_of(*y))) continue;
      if (!is_in_place(r, role, *x, Role(i), *y) && !surely_disjoint(*x, *y)) return false;
    }
  }
  return true;
}

void check_overlap(const Request& r, Call& call) {
  if (r.user) check_user_overlap(r, call);
  for (Role role : {Role::out, Role::aux, Role::bias_grad}) {
    const Operand* x = r.at(role);
    if (!x || !written(r, role)) continue;
    check_itself(*x);
    for (int i = 0; i < kRoles; ++i) {
      const Role other = Role(i);
      const Operand* y = r.operands[i];
      if (!y || y == x || !is_touched(call, other)) continue;
      if (written(r, other) && other > role) continue;  // compared the other way round
      compare(r, call, role, *x, other, *y);
    }
  }
}

}  // namespace cutlass_py
