// Products of unequal size: which axis groups divide, and what that makes of each operand.
//
//   a (M, K), b (G, K, N)      rows:    out (M, N)        a (M, K), b (K, N)        k:    out (G, M, N)
//   a (G, M, K), b (K, N)      columns: out (M, N)        a (G, M, K), b (G, K, N)  the first rows of each matrix
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "operations/gemm/problem.h"

namespace cutlass_py::grouping {

// What tells groups apart: offsets, or sizes.
struct Numbers {
  static constexpr const char* dtypes = "int32 or int64";

  const Operand* array = nullptr;  // of s32, or of 64 bits (`wide`)
  bool sizes = false, wide = false;

  bool on_host() const { return array->device.type == DeviceType::cpu; }
  // Refused unless they are one behind the other, and integers.
  void check() const;
  // Of memory of the host, the i-th, and what errors call it.
  int64_t operator[](int64_t i) const;
  std::string name_of(int64_t i) const { return std::string(array->name) + "[" + std::to_string(i) + "]"; }
};

struct Groups {
  char axis = 0;  // of the caller's product
  bool stacked = false;
  int64_t count = 0, total = 0;
  CutlassPyGroupsKind kind = CUTLASS_PY_NO_GROUPS;
};

// Ranks, and how many there are.
Groups groups_of(const Request& request, const Numbers& numbers);

// From memory of the host, checked: the lines of each, as begin and end.
std::vector<std::pair<int64_t, int64_t>> read(const Groups& groups, const Numbers& numbers);

// The operands of one dense product in place of those of many: a request, and what it points to.
class DenseOperands {
 public:
  // Of all groups: each operand with a batch, whose stride is 0 where they share it.
  DenseOperands(const Request& request, const Groups& groups);
  // Of one group.
  DenseOperands(const Request& request, const Groups& groups, int64_t group, int64_t begin, int64_t end);
  DenseOperands(const DenseOperands&) = delete;

  Request request;

 private:
  Operand held_[kRoles];
};

// The product as one canonical problem, and what the new result looks like.
Call canonicalise(const Request& request, const Groups& groups, const Numbers& numbers, int64_t expected);

}  // namespace cutlass_py::grouping
