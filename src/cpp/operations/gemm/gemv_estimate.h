// What a kernel for a few rows or columns takes: the formula by which it is launched (kernels/gemv/shape.h).
#pragma once

#include <cstdint>

#include "kernels/gemv/shape.h"
#include "operations/gemm/problem.h"

namespace cutlass_py {

struct GemvDesign {
  static constexpr int64_t kPacked = 256;  // alignment of what was packed, bytes

  bool swap;         // the vectors are columns of B
  bool packed;       // the matrix, before
  bool along_k;      // how its lines lie
  bool only_factor;  // nothing else is applied
  int size;          // bytes of an element of the matrix
  gemv::Machine on;
  double longer;  // than the formula says, on this GPU

  // Of so many products as a problem's, each of this length of k.
  double microseconds(const Problem& p, int64_t k, int64_t batch) const {
    const int64_t rows = swap ? p.n : p.m, columns = swap ? p.m : p.n;
    const int64_t alignment = packed ? kPacked : int64_t(1) << (swap ? p.align_a : p.align_b);
    const gemv::Matrix matrix{size, along_k, gemv::granule_of(size, alignment, (along_k ? k : columns) * size)};
    return longer * gemv::best_shape(matrix, {rows, columns, k, batch}, only_factor, on).microseconds;
  }
};

}  // namespace cutlass_py
