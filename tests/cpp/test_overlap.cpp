// Which operands share memory (src/cpp/arrays/memory_overlap.cpp), and what of them canonicalise wants to know of.
#include <algorithm>
#include <iterator>
#include <random>
#include <vector>

#include "check.h"
#include "made_operands.h"

using namespace cutlass_py;

namespace {

Operand batch_of(uintptr_t address, Extents shape, Extents strides, Dtype dtype = Dtype::f32) {
  return operand("x", shape, strides, address, dtype);
}

TEST(provably_disjoint_examples) {
  auto disjoint = [](uintptr_t x, uintptr_t y, int64_t pitch = 16) {
    return provably_disjoint(batch_of(x, {4, 4}, {16, 1}), batch_of(y, {4, 4}, {pitch, 1}));
  };
  const uintptr_t x = 0x1000;
  CHECK(disjoint(x, x + 4 * (3 * 16 + 4)));  // right behind the last element
  CHECK(!disjoint(x, x));
  CHECK(disjoint(x, x + 4 * 4) && disjoint(x, x + 4 * 12));  // columns beside
  CHECK(!disjoint(x, x + 4 * 3));                            // one column shared
  CHECK(!disjoint(x, x + 4 * 13));                           // wraps into the next row
  CHECK(!disjoint(x, x + 16 * 4 * 4, -16));
}

std::vector<uintptr_t> bytes_of(const Operand& x) {
  std::vector<uintptr_t> bytes;
  const int64_t size = dtype_size(x.dtype);
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t i = 0; i < x.shape[1]; ++i) {
      for (int64_t j = 0; j < x.shape[2]; ++j) {
        const int64_t at = (b * x.strides[0] + i * x.strides[1] + j * x.strides[2]) * size;
        for (int64_t byte = 0; byte < size; ++byte) bytes.push_back(reinterpret_cast<uintptr_t>(x.data) + at + byte);
      }
    }
  }
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

// Random views of one region: whatever is called disjoint shares no byte; columns of one buffer are recognised.
TEST(provably_disjoint_at_random) {
  std::mt19937 random(7);
  auto pick = [&](int low, int high) { return int64_t(std::uniform_int_distribution<int>(low, high)(random)); };
  int said = 0, unsaid = 0;
  for (int round = 0; round < 40000; ++round) {
    const int64_t batch = pick(1, 3);
    auto any = [&] {
      const Dtype dtype = pick(0, 1) ? Dtype::f32 : Dtype::f16;
      const int64_t size = dtype_size(dtype);
      const int64_t row = pick(0, 3) ? 24 / size : pick(-9, 9), col = pick(0, 3) ? 1 : pick(-3, 3);
      const int64_t step = pick(0, 1) ? 0 : pick(-1, 4) * 24 / size;
      return batch_of(0x10000 + uintptr_t(4 * pick(0, 30)), {batch, pick(1, 4), pick(1, 4)}, {step, row, col}, dtype);
    };
    const Operand x = any(), y = any();
    const auto left = bytes_of(x), right = bytes_of(y);
    std::vector<uintptr_t> shared;
    std::set_intersection(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(shared));
    const bool disjoint = provably_disjoint(x, y);
    if (disjoint && !shared.empty()) {
      CHECK(!"called disjoint, but shares bytes");
      return;
    }
    ++(disjoint ? said : unsaid);
  }
  CHECK(said > 1000 && unsaid > 1000);
}

TEST(out_overlap) {
  auto possible_overlaps = [](const Operand& a, const Operand* c, const Operand& out) {
    return canonicalise(a, operand("b", {4, 4}), c, &out, {}).possible_overlaps.size();
  };
  Operand out = operand("out", {4, 4}, {8, 1}, 0x10000);
  CHECK(possible_overlaps(operand("a", {4, 4}), nullptr, out) == 0);
  CHECK(possible_overlaps(operand("a", {4, 4}, {8, 1}, 0x10000), nullptr, out) == 1);
  CHECK(possible_overlaps(operand("a", {4, 4}, {8, 1}, 0x10010), nullptr, out) == 0);  // the columns beside
  Operand same = operand("c", {4, 4}, {8, 1}, 0x10000);
  CHECK(possible_overlaps(operand("a", {4, 4}), &same, out) == 0);  // in place
  Operand moved = operand("c", {4, 4}, {8, 1}, 0x10004), flipped = operand("c", {4, 4}, {1, 8}, 0x10000);
  Operand other = operand("c", {4, 4}, {8, 1}, 0x10000, Dtype::f16);
  for (const Operand* c : {&moved, &flipped, &other}) CHECK(possible_overlaps(operand("a", {4, 4}), c, out) == 1);
  Request unread;
  unread.has_beta = true, unread.beta.value = 0;
  CHECK(canonicalise(operand("a", {4, 4}), operand("b", {4, 4}), &moved, &out, unread).possible_overlaps.empty());
}

}  // namespace
