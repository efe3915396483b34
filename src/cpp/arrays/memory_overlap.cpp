#include "arrays/memory_overlap.h"

#include <algorithm>
#include <cstdlib>

namespace cutlass_py {
namespace {

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
    return --left_ < 0 || !provably_disjoint(matrix_at(x_, p), matrix_at(y_, q));
  }

 private:
  const Operand &x_, &y_;
  int left_ = 1 << 14;
};

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

bool provably_disjoint(const Operand& x, const Operand& y) {
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

bool overlaps_itself(const Operand& x) {
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

}  // namespace cutlass_py
