// Trees as Python gives them.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "operations/gemm/trees.h"

namespace cutlass_py {

// Features, thresholds and values: see Tree.
using TreeOf = std::tuple<std::vector<int>, std::vector<double>, std::vector<double>>;

// Of so many features that there are.
inline Trees trees_of(const std::vector<TreeOf>& given, size_t known) {
  Trees trees;
  for (const auto& [features, thresholds, values] : given) {
    if (features.size() != kNodes || thresholds.size() != kNodes || values.size() != kLeaves) {
      throw std::invalid_argument("a tree has 15 features, as many thresholds, and 16 values");
    }
    Tree& tree = trees.emplace_back();
    for (size_t i = 0; i < kNodes; ++i) {
      if (features[i] < 0 || size_t(features[i]) >= known) {
        throw std::invalid_argument("a tree's features are those named");
      }
      if (!std::isfinite(thresholds[i])) throw std::invalid_argument("a threshold is no number");
      tree.feature[i] = uint8_t(features[i]);
      tree.threshold[i] = float(thresholds[i]);
    }
    for (size_t i = 0; i < kLeaves; ++i) tree.value[i] = float(values[i]);
  }
  return trees;
}

}  // namespace cutlass_py
