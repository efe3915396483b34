// The functions of CutlassPyElementwise (kernel.h), and what their launches share.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "abi/dtype.h"
#include "abi/kernel.h"
#include "kernels/common/queue.cuh"

namespace cutlass_py {

int copy(const CutlassPyArray* src, const CutlassPyArray* dst, int32_t itemsize, int64_t batch, int64_t rows,
         int64_t cols, void* stream);

int compose(const CutlassPyArray* acc, int32_t parts, int64_t part_stride, const CutlassPyEpilogue* epilogue,
            const CutlassPyArray* d, int64_t batch, int64_t rows, int64_t cols, void* workspace, void* stream);

// The part of `compose` for c64 and c128: alpha, beta, c and bias.
int compose_complex(const CutlassPyArray* acc, int32_t parts, int64_t part_stride, const CutlassPyEpilogue& epilogue,
                    const CutlassPyArray& d, int64_t batch, int64_t rows, int64_t cols, cudaStream_t stream);

size_t compose_workspace(const CutlassPyEpilogue* epilogue, int64_t batch, int64_t rows, int64_t cols);

int reduce(const CutlassPyArray* from, const CutlassPyArray* to, int32_t reduction, int64_t batch, int64_t lines,
           int64_t length, void* workspace, void* stream);

size_t reduce_workspace(const CutlassPyArray* from, int64_t batch, int64_t lines, int64_t length);

int gather(const CutlassPyArray* src, int64_t src_rows, const void* numbers, int32_t wide, const CutlassPyArray* dst,
           int32_t itemsize, int64_t rows, int64_t cols, void* stream);

int write_pointers(const void* const* pointers, int64_t count, void* destination, void* stream);

int clear_rest(const CutlassPyArray* d, int64_t rows, int64_t cols, const CutlassPyGroups* groups, int32_t count,
               void* stream);

constexpr int64_t kMostBlocksY = 65535;

// Whether rows and columns had better change places, so that the one array that is written runs along its columns.
inline bool runs_along_rows(const CutlassPyArray& written, int64_t rows, int64_t cols) {
  return rows > 1 && (cols == 1 || std::llabs(written.row) < std::llabs(written.col));
}

inline CutlassPyArray transposed(CutlassPyArray array) {
  std::swap(array.row, array.col);
  return array;
}

}  // namespace cutlass_py
