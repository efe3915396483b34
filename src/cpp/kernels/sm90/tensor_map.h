// What the copy engine is told of a batch of matrices: where it lies, and which boxes it is read or written by.
#pragma once

#include <cstdint>

#include "kernels/common/driver.cuh"
#include "kernels/sm90/instructions.cuh"

namespace cutlass_py::sm90 {

// Matrices of `outer` lines of `inner` elements, `stride` elements apart, in a batch `batch_stride` apart; 0 where all
// of the batch is one. Addresses and strides are multiples of 16 bytes.
struct Matrices {
  const void* data;
  int size;  // bytes of an element
  int64_t inner, outer, stride;
  int64_t batch, batch_stride;
  bool tf32 = false;  // f32 in memory, rounded to nearest as it is loaded

  bool shared() const { return batch == 1 || batch_stride == 0; }
};

// A box fills whole rows of shared memory, whose bytes are swizzled in 128, 64 or 32; rows of 16 lie as they are. The
// L2 cache asks memory for 128 bytes: for 256, lines that begin at any 16 bytes take up to 14% longer
// (docs/performance/choice.md).
inline int encode(TensorMap& map, const Matrices& x, int box_inner, int box_outer) {
  static const auto encode_tiled = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
  if (!encode_tiled) return cudaErrorInsufficientDriver;
  const CUtensorMapDataType type = x.size == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : x.size == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                   : x.tf32      ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                                 : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const int row = box_inner * x.size;
  const CUtensorMapSwizzle swizzle = row == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : row == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : row == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                 : CU_TENSOR_MAP_SWIZZLE_NONE;
  const cuuint64_t extents[3] = {cuuint64_t(x.inner), cuuint64_t(x.outer), cuuint64_t(x.shared() ? 1 : x.batch)};
  const cuuint64_t line = cuuint64_t(x.stride) * x.size;
  const cuuint64_t strides[2] = {line, x.shared() ? line * x.outer : cuuint64_t(x.batch_stride) * x.size};
  const cuuint32_t box[3] = {cuuint32_t(box_inner), cuuint32_t(box_outer), 1}, steps[3] = {1, 1, 1};
  const CUresult error = encode_tiled(reinterpret_cast<CUtensorMap*>(&map), type, 3, const_cast<void*>(x.data), extents,
                                      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return error == CUDA_SUCCESS ? 0 : cudaErrorInvalidValue;
}

}  // namespace cutlass_py::sm90
