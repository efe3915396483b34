// Boosted trees of one depth: what a formula leaves, by what it does not tell apart. Grown in calibrating/residual.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cutlass_py {

constexpr size_t kTreeDepth = 4, kLeaves = size_t{1} << kTreeDepth, kNodes = kLeaves - 1;

// Complete: below node i are 2 i + 1, and 2 i + 2 for what is above its threshold.
struct Tree {
  std::array<uint8_t, kNodes> feature;
  std::array<float, kNodes> threshold;
  std::array<float, kLeaves> value;

  float operator()(const float* features) const {
    size_t at = 0;
    for (size_t level = 0; level < kTreeDepth; ++level) at = 2 * at + 1 + (features[feature[at]] > threshold[at]);
    return value[at - kNodes];
  }
};

using Trees = std::vector<Tree>;

inline double sum_of(const Trees& trees, const float* features) {
  double sum = 0;
  for (const Tree& tree : trees) sum += tree(features);
  return sum;
}

}  // namespace cutlass_py
